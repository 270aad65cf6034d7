// Words as tokens: what stands between ASCII spaces. Ids: specials first, then words, those that
// occur more often first.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

struct WordRules {
  std::vector<std::string> specials;  // each is a token also where a text spells it out
  int64_t unknown = 0;                // the special for words that are not known, and for "<unk>"
  std::string line_end =
      {};  // the word that every end of a line is; empty: they separate words as spaces do
};

// Words that occur `min_count` times or more in the texts, by their count and then by their bytes.
// The specials and "<unk>" are no such words.
std::vector<std::string> frequent_words(const std::vector<std::string_view>& texts,
                                        const WordRules& rules, int64_t min_count);

// DataError where a token occurs twice, or none is for the unknown.
std::shared_ptr<const Tokenizer> word_tokenizer(WordRules rules, std::vector<std::string> words);

}  // namespace headlab
