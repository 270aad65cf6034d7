#include "experiments/data/tokenizers/bert_words.h"

#include <algorithm>
#include <array>

namespace headlab {
namespace {

// As BERT's makers wrote them down: neither kana nor hangul, and with a gap (2B740-2B81F is
// extension D; of E, which begins at 2B820, 256 are left out).
bool is_ideograph(char32_t c) {
  constexpr std::array<std::pair<char32_t, char32_t>, 8> kBlocks{{{0x4E00, 0x9FFF},
                                                                  {0x3400, 0x4DBF},
                                                                  {0xF900, 0xFAFF},
                                                                  {0x20000, 0x2A6DF},
                                                                  {0x2A700, 0x2B73F},
                                                                  {0x2B740, 0x2B81F},
                                                                  {0x2B920, 0x2CEAF},
                                                                  {0x2F800, 0x2FA1F}}};
  return std::ranges::any_of(
      kBlocks, [&](const auto& block) { return c >= block.first && c <= block.second; });
}

bool is_ascii_mark(char32_t c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

bool is_dropped(char32_t c) {
  if (c == U'\t' || c == U'\n' || c == U'\r') return false;
  return c == 0 || c == 0xFFFD || is_control(c);
}

}  // namespace

PlacedChars BertNormalizer::operator()(const PlacedChars& chars) const {
  PlacedChars made;
  made.reserve(chars.size());
  for (const auto& c : chars) {
    if (is_dropped(c.value)) continue;
    const bool ideograph = is_ideograph(c.value);
    const PlacedChar space{U' ', c.range};
    if (ideograph) made.push_back(space);
    made.push_back(is_white_space(c.value) ? space : c);
    if (ideograph) made.push_back(space);
  }
  if (strip_accents) {
    made = decomposed(made);
    std::erase_if(made, [](const PlacedChar& c) { return is_nonspacing_mark(c.value); });
  }
  return lower_case ? headlab::lower_case(made) : made;
}

std::vector<PlacedChars> bert_words(const PlacedChars& normalized) {
  std::vector<PlacedChars> words;
  bool within = false;
  for (const auto& c : normalized) {
    const bool mark = is_ascii_mark(c.value) || is_punctuation(c.value);
    if (c.value == U' ') {
      within = false;
      continue;
    }
    if (mark || !within) words.emplace_back();
    words.back().push_back(c);
    within = !mark;
  }
  return words;
}

}  // namespace headlab
