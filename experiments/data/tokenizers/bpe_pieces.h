// What byte-level BPE (GPT-2) does to a text before it joins anything: pieces, and their bytes as
// symbols that can be written down. No torch in here.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "experiments/data/tokenizers/special_tokens.h"

namespace headlab {

// How a text is cut, \s being white space and \p{L}, \p{N} Unicode's letters and numbers:
//
// gpt2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// smollm2  every \p{N} alone, what lies between as gpt2
// llama3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//           ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// qwen2    NFC, then as llama3 with \p{N} instead of \p{N}{1,3}
enum class BpePattern { kGpt2, kSmollm2, kLlama3, kQwen2 };
std::string name_of(BpePattern pattern);
std::optional<BpePattern> bpe_pattern(std::string_view name);

struct BpePiece {
  TextRange range;
  std::string_view bytes = {};             // of the text, or what NFC made of them
  std::span<const TextRange> places = {};  // of each of the bytes; none: where they lie in `range`
  int64_t special = -1;                    // which of the specials it is
  bool white_space = false;                // and nothing else
  bool begins_with_space = false;
};

// One piece after the other: specials are cut out first, what lies between is cut by the pattern.
// DataError as decode_utf8 for what is not UTF-8.
void for_each_bpe_piece(std::string_view text, const std::string& name,
                        const SpecialTokens& specials, BpePattern pattern,
                        const std::function<void(const BpePiece&)>& take);

// Whether a piece ends before the byte at `at` (> 0) whatever stands before and behind it, none of
// the pieces there being others where the text ends or begins at this place. Not every such place:
// those that texts have plenty of. Specials are left aside.
bool always_cut(std::string_view text, size_t at, BpePattern pattern);

// The symbol of every byte: itself where it is visible in Latin-1, else one from U+0100 on.
const std::array<std::string, 256>& bpe_symbols();
std::string bpe_symbols(std::string_view bytes);
bool have_all_symbols(const std::vector<std::string>& tokens);
// The bytes that symbols stand for; none where one is no byte's.
std::optional<std::string> bpe_bytes(std::string_view symbols);

}  // namespace headlab
