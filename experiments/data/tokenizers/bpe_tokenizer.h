// Byte-level BPE, as GPT-2 has it (Radford et al. 2019; Sennrich et al., arXiv 1508.07909): bytes
// are joined pair by pair, and no text is unknown.
#pragma once

#include <filesystem>

#include "experiments/data/tokenizers/bpe_pieces.h"
#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

// Tokens by id, written as symbols ("Ġthe"), "" where an id has none; merges by rank, each of two
// tokens; specials are verbatim, tokens too.
struct BpeModel {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> specials = {};
  BpePattern pattern = BpePattern::kGpt2;
  bool ignore_merges = false;        // a piece that is a token is that one, before any merge
  bool drops_unknown_bytes = false;  // those that have no token vanish; else each must have one
  TextFrame frame = {};
};

// DataError where a merge joins what are no tokens, or to none; where a byte has no token, or the
// frame is none.
std::shared_ptr<const Tokenizer> bpe_tokenizer(BpeModel model);

// Of the specials, then the 256 bytes, then what merges make, `vocabulary` tokens in all, fewer
// where no pair occurs twice any more. The next merge is of the pair that is most frequent in the
// pieces of the texts, ties by the ids of left and right.
BpeModel train_bpe(const std::vector<std::string_view>& texts, std::vector<std::string> specials,
                   int64_t vocabulary);

// The two tokens of "left right". DataError naming `place` where that is no merge.
std::pair<std::string, std::string> bpe_merge(const std::string& text, const std::string& place);

// merges.txt, a line "left right" each.
std::vector<std::pair<std::string, std::string>> read_merges(const std::filesystem::path& file);

}  // namespace headlab
