// Normal forms, and where in the text they come from.
#include "experiments/text/unicode.h"
#include "tests/catch.h"

namespace headlab::test_unicode {
namespace {

std::string text_of(const PlacedChars& chars) {
  std::string text;
  for (const auto& c : chars) text += encode_utf8(c.value);
  return text;
}

std::vector<TextRange> ranges_of(const PlacedChars& chars) {
  std::vector<TextRange> ranges;
  for (const auto& c : chars) ranges.push_back(c.range);
  return ranges;
}

PlacedChars placed(const std::string& text) { return placed_chars(text, 0, "t"); }

}  // namespace

TEST_CASE("characters are decomposed and composed", "[unicode]") {
  CHECK(text_of(decomposed(placed("\u00e9\u1e69 \ud55c"))) ==
        "e\u0301s\u0323\u0307 \u1112\u1161\u11ab");
  // In the order of their classes.
  CHECK(text_of(decomposed(placed("a\u0301\u0323b\u0302\u0301"))) == "a\u0323\u0301b\u0302\u0301");
  for (const std::string text : {"\u00e9\u1e69 \ud55c\u4e2d", "plain", "\u0301x", "\u0958"}) {
    const auto parts = decomposed(placed(text));
    CHECK(text_of(composed(placed(text_of(parts)))) == (text == "\u0958" ? "\u0915\u093c" : text));
  }
  // A mark of the same class blocks; another one does not.
  CHECK(text_of(composed(placed("a\u0327\u0301"))) == "\u00e1\u0327");
  CHECK(text_of(composed(placed("a\u0305\u0301"))) == "a\u0305\u0301");
  CHECK(text_of(composed(placed("\u0301\u0301"))) == "\u0301\u0301");
}

TEST_CASE("what characters become knows the bytes it was", "[unicode]") {
  using Ranges = std::vector<TextRange>;
  CHECK(ranges_of(placed_chars("x\u00e9", 5, "t")) == Ranges{{5, 6}, {6, 8}});
  CHECK(ranges_of(decomposed(placed("x\u00e9"))) == Ranges{{0, 1}, {1, 3}, {1, 3}});
  // As NFC of the tokenizers library 0.23.3 places them.
  CHECK(ranges_of(composed(placed("xe\u0301y"))) == Ranges{{0, 1}, {1, 2}, {4, 5}});
  CHECK(ranges_of(composed(placed("a\u0327\u0301\u0327 "))) ==
        Ranges{{0, 1}, {3, 5}, {5, 7}, {7, 8}});
  CHECK(ranges_of(composed(placed("\u1112\u1161\u11abz"))) == Ranges{{0, 3}, {9, 10}});
  CHECK(ranges_of(composed(placed("\u0301\u0323 "))) == Ranges{{0, 2}, {2, 4}, {4, 5}});
  CHECK(ranges_of(composed(placed("\u0344x"))) == Ranges{{0, 2}, {0, 2}, {2, 3}});
}

// Its parts have the tables of Unicode 8, 9, 16 and 17; tests/slow/test_tokenizers_opened.py
// compares all code points.
TEST_CASE("characters are what the tokenizers library 0.23.3 takes them for", "[unicode]") {
  // Assigned by Unicode 15.1, 16 and 17.
  for (char32_t c : {0x2EBF0, 0x10D50, 0xA7CB}) CHECK(is_letter(c));
  for (char32_t c : {0x10D40, 0x1CCF0}) CHECK((is_number(c) && is_digit(c)));
  for (char32_t c : {0x323B0, 0x10940, 0x16EBB}) CHECK_FALSE(is_letter(c));
  for (char32_t c : {0x11DE0, 0x16FF4}) CHECK((!is_number(c) && is_digit(c)));
  CHECK_FALSE(is_digit('a'));
  // Not yet, by Unicode 8; and U+166D, which was one.
  for (char32_t c : {0x2E43, 0x2E52, 0x61D, 0x9FD, 0x1B7D}) CHECK_FALSE(is_punctuation(c));
  for (char32_t c : {0x2E42, 0x166D, 0x10FB}) CHECK(is_punctuation(c));
  for (char32_t c : {0x8D4, 0x898, 0xAFA, 0x1DF6}) CHECK_FALSE(is_nonspacing_mark(c));
  for (char32_t c : {0x8E3, 0x111CA}) CHECK(is_nonspacing_mark(c));
  for (char32_t c : {0x890, 0x8E2, 0x110CD, 0x13430}) CHECK_FALSE(is_control(c));
  // By Unicode 9.
  for (const std::string text : {"\U00011938", "\U000105C9", "a\u0345\u0898", "a\u07fd\u0334"})
    CHECK(text_of(decomposed(placed(text))) == text);
  CHECK(text_of(composed(placed("\U00011935\U00011930"))) == "\U00011935\U00011930");
  CHECK(text_of(decomposed(placed("a\u0345\u08d4"))) == "a\u08d4\u0345");
  CHECK(text_of(lower_case(placed("\ua7cb\U00010d50\u0100\u0101\u0139\u013a"))) ==
        "\u0264\U00010d70\u0101\u0101\u013a\u013a");
}

TEST_CASE("lower case looks at one character", "[unicode]") {
  CHECK(text_of(lower_case(placed("A\u00c9\u03a3\u0130\u1e9e"))) == "a\u00e9\u03c3i\u0307\u00df");
  CHECK(is_nonspacing_mark(0x301));
  CHECK_FALSE(is_nonspacing_mark(0x903));
  CHECK(is_punctuation(0x3002));
  CHECK_FALSE(is_punctuation('+'));
  for (char32_t c : {0x0, 0x85, 0xAD, 0x200D, 0xE000}) CHECK(is_control(c));
  for (char32_t c : {U'a', char32_t{0x378}, char32_t{0x2028}}) CHECK_FALSE(is_control(c));
}

}  // namespace headlab::test_unicode
