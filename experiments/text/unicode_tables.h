// What the tokenizers library takes characters for. Its parts have tables of different versions of
// Unicode, none of which need be that of utf8proc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace headlab {

struct CodePoints {
  char32_t first, last;
};
using CodePointSet = std::span<const CodePoints>;  // in ascending order

// Of code points counted from 0 on, by turns: how many are not in a set, how many are.
template <size_t n>
constexpr std::array<CodePoints, n / 2> ranges_of(const char32_t (&counts)[n]) {
  std::array<CodePoints, n / 2> ranges{};
  char32_t behind = 0;  // the range before
  for (size_t i = 0; i < n / 2; ++i) {
    const auto first = behind + counts[2 * i];
    behind = first + counts[2 * i + 1];
    ranges[i] = {first, behind - 1};
  }
  return ranges;
}

extern const CodePointSet kLetters, kNumbers;  // \p{L}, \p{N}: Unicode 16
extern const CodePointSet kMoreDigits;         // what Digits takes for one beside these: Unicode 17
// BERT's: the categories P*, Mn and Cc, Cf, Co of Unicode 8.
extern const CodePointSet kPunctuation, kNonspacingMarks, kControls;
// Normal forms: marks that change places with others, what is decomposed. Unicode 9.
extern const CodePointSet kReordered, kDecomposed;

// Lower case of every `step`-th from `first` to `last`: so much more. Unicode 17.
struct CaseChange {
  char32_t first, last, step;
  int32_t more;
};
extern const std::span<const CaseChange> kLowerCase;

// The range that a code point lies in; null: none.
template <class Range>
const Range* range_around(char32_t c, std::span<const Range> ranges) {
  const auto behind = std::ranges::upper_bound(ranges, c, {}, &Range::first);
  if (behind == ranges.begin()) return nullptr;
  const auto& range = *std::prev(behind);
  return c <= range.last ? &range : nullptr;
}

inline bool is_in(char32_t c, CodePointSet set) { return range_around(c, set) != nullptr; }

}  // namespace headlab
