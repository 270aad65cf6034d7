#include "experiments/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>

#include "experiments/text/unicode_tables.h"

namespace headlab {
namespace {

utf8proc_int32_t as_proc(char32_t c) { return static_cast<utf8proc_int32_t>(c); }
// 0: a starter.
int combining_class(char32_t c) {
  return is_in(c, kReordered) ? utf8proc_get_property(as_proc(c))->combining_class : 0;
}

// The one code point that two are the canonical decomposition of; 0: none.
char32_t composite(char32_t first, char32_t second) {
  if (second < 0x300) return 0;
  std::array pair{as_proc(first), as_proc(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  if (utf8proc_normalize_utf32(pair.data(), 2, options) != 1) return 0;
  const auto made = static_cast<char32_t>(pair[0]);
  return is_in(made, kDecomposed) ? made : 0;
}

// A character of a normal form, and by how many it is more than those that it was made of.
struct CharPart {
  char32_t value;
  TextRange range;
  ptrdiff_t more;
};

std::vector<CharPart> parts_of(const PlacedChars& chars) {
  std::vector<CharPart> parts;
  parts.reserve(chars.size());
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
  for (const auto& c : chars) {
    if (!is_in(c.value, kDecomposed)) {
      parts.push_back({c.value, c.range, 0});
      continue;
    }
    std::array<utf8proc_int32_t, 16> into;  // the longest has four
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(as_proc(c.value), into.data(), into.size(), options, &boundary);
    for (auto n = 0; n < count; ++n)
      parts.push_back({static_cast<char32_t>(into[n]), c.range, n == 0 ? 0 : 1});
  }
  // Marks between two starters stand in the order of their classes.
  const auto is_starter = [](const CharPart& part) { return combining_class(part.value) == 0; };
  for (auto at = parts.begin(); at != parts.end();) {
    at = std::find_if_not(at, parts.end(), is_starter);
    const auto end = std::find_if(at, parts.end(), is_starter);
    std::stable_sort(at, end, [](const CharPart& a, const CharPart& b) {
      return combining_class(a.value) < combining_class(b.value);
    });
    at = end;
  }
  return parts;
}

// Parts that have a composite are joined, unless what lies between them blocks it.
std::vector<CharPart> joined(const std::vector<CharPart>& parts) {
  std::vector<CharPart> made;
  std::optional<size_t> starter;  // its place in `made`
  for (const auto& part : parts) {
    const auto own = combining_class(part.value);
    if (starter) {
      const bool adjacent = made.size() == *starter + 1;
      const bool blocked = !adjacent && combining_class(made.back().value) >= own;
      if (const char32_t whole = blocked ? 0 : composite(made[*starter].value, part.value)) {
        made[*starter].value = whole;
        made[*starter].more += part.more - 1;
        continue;
      }
    }
    if (own == 0) starter = made.size();
    made.push_back(part);
  }
  return made;
}

}  // namespace

bool is_digit(char32_t c) { return is_in(c, kNumbers) || is_in(c, kMoreDigits); }
bool is_punctuation(char32_t c) { return is_in(c, kPunctuation); }
bool is_nonspacing_mark(char32_t c) { return is_in(c, kNonspacingMarks); }
bool is_control(char32_t c) { return is_in(c, kControls); }

PlacedChars placed_chars(std::string_view part, size_t begin, const std::string& where) {
  PlacedChars chars;
  chars.reserve(part.size());
  size_t at = 0;
  decode_utf8(part, where, [&](char32_t c) {
    const size_t end = at + utf8_length(part, at);
    chars.push_back({c, {begin + at, begin + end}});
    at = end;
  });
  return chars;
}

PlacedChars decomposed(const PlacedChars& chars) {
  PlacedChars made;
  made.reserve(chars.size());
  // Marks that change places leave theirs behind: tokenizers gives places out in their order.
  size_t given = 0;
  for (const auto& part : parts_of(chars)) {
    if (part.more == 0) ++given;
    made.push_back({part.value, given == 0 ? part.range : chars[given - 1].range});
  }
  return made;
}

PlacedChars composed(const PlacedChars& chars) {
  if (std::ranges::none_of(chars, [](const auto& c) { return c.value >= 0x300; })) return chars;
  PlacedChars made;
  made.reserve(chars.size());
  ptrdiff_t at = 0;  // the next of `chars`
  for (const auto& part : joined(parts_of(chars))) {
    const ptrdiff_t place = part.more > 0 ? std::max<ptrdiff_t>(at - 1, 0) : at;
    made.push_back({part.value, chars[place].range});
    if (part.more <= 0) at += 1 - part.more;
  }
  return made;
}

PlacedChars lower_case(const PlacedChars& chars) {
  PlacedChars made;
  made.reserve(chars.size());
  for (const auto& c : chars) {
    if (c.value == U'\u0130') {  // the only one that becomes two
      made.push_back({U'i', c.range}), made.push_back({U'\u0307', c.range});
      continue;
    }
    const auto* change = range_around(c.value, kLowerCase);
    const bool changes = change && (c.value - change->first) % change->step == 0;
    made.push_back({changes ? c.value + static_cast<char32_t>(change->more) : c.value, c.range});
  }
  return made;
}

}  // namespace headlab
