// Treebanks in CoNLL-U (universaldependencies.org/format.html): words with their heads and
// relations, and where they stand in the text. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/text/utf8.h"

namespace headlab {

struct TreebankWord {
  std::string form, relation;
  int64_t head = 0;           // 1..n; 0: the word is the root
  size_t begin = 0, end = 0;  // its bytes in the sentence's text; empty where it has none
};

// Multiword tokens count as the words they are made of, empty nodes do not count. The text is the
// tokens with a space between them, unless SpaceAfter=No. Words of a multiword token have the text
// that is theirs where their forms make up the token ("don't": "do", "n't"), none otherwise ("du":
// "de", "le").
struct TreebankSentence {
  int64_t line = 0;  // of its first token
  std::string text;
  std::vector<TreebankWord> words;
};

struct TreebankOptions {
  bool subtypes = false;  // relations with the part after the colon: nsubj:pass, not nsubj
};

// Strict: DataError `path:line: what is wrong` for anything that is not CoNLL-U.
std::vector<TreebankSentence> read_treebank(const std::filesystem::path& path,
                                            const TreebankOptions& options = {});
// The same of a text; `name` stands for the path.
std::vector<TreebankSentence> parse_treebank(std::string_view text, const std::string& name,
                                             const TreebankOptions& options = {});

// "all", then the relations in the order of their frequency, the more frequent first (ties: by
// name): the places of statistics by relation.
std::vector<std::string> relations_of(const std::vector<TreebankSentence>& sentences);

// The word that each token belongs to, of which `tokens` are the bytes in the text, in their order:
// the first that it shares a byte with, -1 for none (spaces between words). Nothing where a word
// has no token of its own.
std::optional<std::vector<int64_t>> words_of_tokens(const TreebankSentence& sentence,
                                                    const std::vector<TextRange>& tokens);

}  // namespace headlab
