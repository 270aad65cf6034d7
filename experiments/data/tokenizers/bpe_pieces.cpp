#include "experiments/data/tokenizers/bpe_pieces.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <vector>

#include "experiments/text/unicode.h"

namespace headlab {
namespace {

constexpr std::array<std::string_view, 4> kPatternNames{"gpt2", "smollm2", "llama3", "qwen2"};

enum class CharClass { kWhiteSpace, kLetter, kNumber, kOther };

CharClass class_of(char32_t c, BpePattern pattern) {
  if (is_white_space(c)) return CharClass::kWhiteSpace;
  if (is_letter(c)) return CharClass::kLetter;
  const bool number = pattern == BpePattern::kSmollm2 ? is_digit(c) : is_number(c);
  return number ? CharClass::kNumber : CharClass::kOther;
}

// A pattern on a text's code points, one piece after the other.
class PieceCutter {
 public:
  PieceCutter(std::u32string chars, BpePattern pattern)
      : chars_(std::move(chars)), pattern_(pattern) {
    classes_.reserve(chars_.size());
    for (char32_t c : chars_) classes_.push_back(class_of(c, pattern));
  }

  // Number of code points of the piece that begins at `at`; in ascending order of `at`.
  size_t length(size_t at) {
    switch (pattern_) {
      case BpePattern::kGpt2:
        return gpt2_length(at, chars_.size());
      case BpePattern::kSmollm2:
        if (is(at, CharClass::kNumber)) return 1;
        if (at >= between_numbers_) between_numbers_ = next_number(at);
        return gpt2_length(at, between_numbers_);
      case BpePattern::kLlama3:
        return llama3_length(at, 3);
      case BpePattern::kQwen2:
        break;
    }
    return llama3_length(at, 1);
  }

  size_t size() const { return chars_.size(); }
  bool is(size_t at, CharClass one) const { return at < chars_.size() && classes_[at] == one; }

 private:
  // The text ends at `end`.
  size_t gpt2_length(size_t at, size_t end) const {
    if (const size_t apostrophe = contraction(at)) return apostrophe;
    const size_t space = chars_[at] == U' ' ? 1 : 0;
    if (at + space == end || is(at + space, CharClass::kWhiteSpace))
      return white_space_length(at, end);
    return space + run(at + space);
  }

  size_t llama3_length(size_t at, size_t digits) const {
    if (const size_t apostrophe = contraction(at)) return apostrophe;
    if (is(at, CharClass::kLetter)) return run(at);
    if (is(at, CharClass::kNumber)) return std::min(run(at), digits);
    if (!is_line_end(at) && is(at + 1, CharClass::kLetter)) return 1 + run(at + 1);
    const size_t space = chars_[at] == U' ' ? 1 : 0;
    if (is(at + space, CharClass::kOther)) {
      size_t end = at + space + run(at + space);
      while (end < chars_.size() && is_line_end(end)) ++end;
      return end - at;
    }
    for (size_t behind = at + run(at); behind > at; --behind)
      if (is_line_end(behind - 1)) return behind - at;
    return white_space_length(at, chars_.size());
  }

  // The last one belongs to what follows it, unless it is the only one.
  size_t white_space_length(size_t at, size_t end) const {
    const size_t spaces = std::min(run(at), end - at);
    return at + spaces < end && spaces > 1 ? spaces - 1 : spaces;
  }
  // Of how many code points of the class at `at` follow each other.
  size_t run(size_t at) const {
    const auto other = [&](CharClass one) { return one != classes_[at]; };
    const auto begin = classes_.begin() + static_cast<ptrdiff_t>(at);
    return std::find_if(begin, classes_.end(), other) - begin;
  }
  size_t next_number(size_t at) const {
    const auto begin = classes_.begin() + static_cast<ptrdiff_t>(at);
    return std::find(begin, classes_.end(), CharClass::kNumber) - classes_.begin();
  }
  bool is_line_end(size_t at) const { return chars_[at] == U'\r' || chars_[at] == U'\n'; }

  size_t contraction(size_t at) const {
    if (chars_[at] != U'\'') return 0;
    const bool any_case = pattern_ == BpePattern::kLlama3 || pattern_ == BpePattern::kQwen2;
    const auto letter = [&](char32_t c) -> char32_t {
      if (!any_case) return c;
      return c == U'\u017F' ? U's' : c >= U'A' && c <= U'Z' ? c + (U'a' - U'A') : c;
    };
    for (const std::u32string_view end : {U"s", U"t", U"re", U"ve", U"m", U"ll", U"d"}) {
      size_t n = 0;
      while (n < end.size() && at + 1 + n < chars_.size() && letter(chars_[at + 1 + n]) == end[n])
        ++n;
      if (n == end.size()) return 1 + n;
    }
    return 0;
  }

  std::u32string chars_;
  std::vector<CharClass> classes_;
  BpePattern pattern_;
  size_t between_numbers_ = 0;  // where the next number is
};

// What NFC makes of a part of a text; empty where that changes nothing.
struct Composed {
  std::string bytes;
  std::vector<TextRange> places;  // of each
};

// Line by line: no line end takes part in a composition.
Composed compose_part(std::string_view part, size_t begin, const std::string& name) {
  Composed made;
  bool changed = false;
  for (const bool write : {false, true}) {
    if (write && !changed) return made;
    for (size_t at = 0; at < part.size();) {
      const size_t end = std::min(part.find('\n', at), part.size() - 1) + 1;
      const auto chars = placed_chars(part.substr(at, end - at), begin + at, name);
      const auto whole = composed(chars);
      const auto value = &PlacedChar::value;
      changed = changed || !std::ranges::equal(chars, whole, {}, value, value);
      for (const auto& c : whole) {
        if (!write) break;
        made.bytes += encode_utf8(c.value);
        made.places.resize(made.bytes.size(), c.range);
      }
      at = end;
    }
  }
  return made;
}

std::array<std::string, 256> make_symbols() {
  std::array<std::string, 256> symbols;
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    symbols[byte] = encode_utf8(visible ? char32_t{byte} : next++);
  }
  return symbols;
}

}  // namespace

std::string name_of(BpePattern pattern) {
  return std::string(kPatternNames[static_cast<size_t>(pattern)]);
}

std::optional<BpePattern> bpe_pattern(std::string_view name) {
  const auto found = std::ranges::find(kPatternNames, name);
  if (found == kPatternNames.end()) return std::nullopt;
  return static_cast<BpePattern>(found - kPatternNames.begin());
}

// 1. Before ASCII's white space behind a character c that is none; with llama3 and qwen2 not before
//    the end of a line. No alternative of a pattern goes on with white space behind c, but
//    [\r\n]* of those two: so a piece ends there, and what is matched before it, greedy runs and
//    the lookahead (?!\S) of white space before c included, is the same where the text ends. What
//    begins there is matched by what follows alone. smollm2 cuts at numbers first: between two of
//    them this holds as for gpt2, and at a number it cuts anyway.
// 2. With llama3 and qwen2 behind a line feed that no white space follows: white space with a line
//    feed is a piece up to its last one, also where the text ends, and so is what [\r\n]* took.
//
// NFC of qwen2 makes the same of the two parts: ASCII's white space are starters that nothing is
// composed with (no second character of a composition lies below U+0300), and no mark changes
// places with them. It makes white space of nothing else, so that c stays none.
bool always_cut(std::string_view text, size_t at, BpePattern pattern) {
  const bool by_lines = pattern == BpePattern::kLlama3 || pattern == BpePattern::kQwen2;
  const auto is_text = [](char32_t c) { return c != kNoCharacter && !is_white_space(c); };
  const char c = text[at];
  if (c == ' ' || (c >= '\t' && c <= '\r' && !(by_lines && (c == '\n' || c == '\r'))))
    return is_text(code_point_before(text, at));
  return by_lines && text[at - 1] == '\n' && is_text(code_point_at(text, at));
}

void for_each_bpe_piece(std::string_view text, const std::string& name,
                        const SpecialTokens& specials, BpePattern pattern,
                        const std::function<void(const BpePiece&)>& take) {
  decode_utf8(text, name, [](char32_t) {});  // whole, so that what is wrong is said with its place
  specials.for_each_part(text, [&](TextRange range, int64_t special) {
    auto part = text.substr(range.begin, range.end - range.begin);
    if (special >= 0) {
      take({.range = range, .bytes = part, .special = special});
      return;
    }
    Composed made;
    if (pattern == BpePattern::kQwen2) made = compose_part(part, range.begin, name);
    if (!made.bytes.empty()) part = made.bytes;
    PieceCutter cutter(decode_utf8(part, name), pattern);
    size_t at = 0;
    for (size_t n = 0; n < cutter.size();) {
      const size_t first = n, end = n + cutter.length(n), begin = at;
      for (; n < end; ++n) at += utf8_length(part, at);
      BpePiece piece{.range = {range.begin + begin, range.begin + at},
                     .bytes = part.substr(begin, at - begin)};
      if (!made.bytes.empty()) {
        piece.places = std::span(made.places).subspan(begin, at - begin);
        piece.range = {piece.places.front().begin, piece.places.back().end};
      }
      piece.begins_with_space = cutter.is(first, CharClass::kWhiteSpace);
      piece.white_space = piece.begins_with_space && cutter.is(end - 1, CharClass::kWhiteSpace);
      take(piece);
    }
  });
}

const std::array<std::string, 256>& bpe_symbols() {
  static const auto symbols = make_symbols();
  return symbols;
}

std::string bpe_symbols(std::string_view bytes) {
  std::string symbols;
  for (char byte : bytes) symbols += bpe_symbols()[static_cast<unsigned char>(byte)];
  return symbols;
}

bool have_all_symbols(const std::vector<std::string>& tokens) {
  const std::unordered_set<std::string_view> known(tokens.begin(), tokens.end());
  return std::ranges::all_of(bpe_symbols(), [&](const auto& one) { return known.contains(one); });
}

std::optional<std::string> bpe_bytes(std::string_view symbols) {
  static const auto byte_of = [] {
    std::map<std::string, char, std::less<>> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes[bpe_symbols()[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string bytes;
  for (size_t at = 0; at < symbols.size();) {
    const size_t length = utf8_length(symbols, at);
    const auto found = byte_of.find(symbols.substr(at, length));
    if (length == 0 || found == byte_of.end()) return std::nullopt;
    bytes += found->second;
    at += length;
  }
  return bytes;
}

}  // namespace headlab
