// UTF-8: every code point survives, and nothing else is read.
#include <cstdint>

#include "core/errors.h"
#include "experiments/text/utf8.h"
#include "tests/catch.h"

namespace headlab::test_utf8 {
namespace {

using Catch::Matchers::StartsWith;

TEST_CASE("every code point survives UTF-8, and nothing else is read") {
  std::u32string all;
  for (char32_t c = 0; c < 0x110000; ++c)
    if (c < 0xD800 || c > 0xDFFF) all += c;
  std::string text;
  for (char32_t c : all) text += encode_utf8(c);
  CHECK((decode_utf8(text, "all") == all));
  for (const std::string wrong :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "\xC3z", "\xE2\x82z"}) {
    CHECK_THROWS_AS(decode_utf8("ab" + wrong, "t"), DataError);
    CHECK_THROWS_WITH(decode_utf8("ab" + wrong, "t"), StartsWith("t: byte 2 (0x"));
  }
}

// Bytes of the shortest sequence.
size_t bytes_for(char32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

// The sequence of `length` bytes that RFC 3629 would give a value, were it allowed.
std::string spelled(uint32_t value, size_t length) {
  if (length == 1) return {static_cast<char>(value)};
  std::string bytes(length, '\0');
  for (size_t i = length; i-- > 1; value >>= 6) bytes[i] = static_cast<char>(0x80 | (value & 0x3F));
  bytes[0] = static_cast<char>((0xF00 >> length) | value);
  return bytes;
}

TEST_CASE("a value is read from the shortest sequence alone, surrogates and beyond from none") {
  size_t wrong = 0;
  const auto expect = [&](uint32_t value, size_t length) {
    const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
    const bool sound = value < 0x110000 && !surrogate && bytes_for(value) == length;
    const std::string text = "a" + spelled(value, length);
    if (utf8_length(text, 1) != (sound ? length : 0)) ++wrong;
    const auto found = sound ? char32_t{value} : kNoCharacter;
    if (code_point_at(text, 1) != found || code_point_before(text, 1 + length) != found) ++wrong;
    if (length > 1 && utf8_length(text.substr(0, length), 1) != 0) ++wrong;  // cut short
    if (length > 1 && code_point_before(text, length) != kNoCharacter) ++wrong;
    for (size_t count = 1; sound && count <= length; ++count)
      if (utf8_unfinished(text.substr(0, 1 + count)) != count % length) ++wrong;
  };
  for (uint32_t value = 0; value < 0x80; ++value) expect(value, 1);
  for (uint32_t value = 0; value < 0x800; ++value) expect(value, 2);
  for (uint32_t value = 0; value < 0x10000; ++value) expect(value, 3);
  for (uint32_t value = 0; value < 0x200000; value += 5) expect(value, 4);
  CHECK(wrong == 0);
  CHECK(utf8_length("a", 1) == 0);
  CHECK(code_point_at("a", 1) == kNoCharacter);
  CHECK(code_point_before("a", 0) == kNoCharacter);
  CHECK(code_point_before("\u20acz", 3) == U'\u20ac');
  CHECK(utf8_length(std::string(1, '\0'), 0) == 1);
}

TEST_CASE("what can become no code point is not unfinished") {
  for (const char* text : {"", "a", "\x80", "\xC1", "\xE0\x9F", "\xED\xA0", "\xF0\x8F", "\xF4\x90",
                           "\xF5", "\xFF", "\xE2 ", "\xC3\xA9\x80"})
    CHECK(utf8_unfinished(text) == 0);
  CHECK(utf8_unfinished("\xE2\x82\xE2\x82") == 2);
}

TEST_CASE("what is not UTF-8 is replaced, sequences that break off as one") {
  CHECK(replace_invalid_utf8("").empty());
  CHECK(replace_invalid_utf8("a\u00e9\u20ac\U0001f600") == "a\u00e9\u20ac\U0001f600");
  // The example of Unicode 15, table 3-8, and what follows it there.
  CHECK(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") ==
        "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  CHECK(replace_invalid_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") ==
        "\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  CHECK(replace_invalid_utf8("a\xF0\x9F\x98") == "a\uFFFD");
}

TEST_CASE("letters and numbers are Unicode's") {
  for (char32_t c : U"aZ\u00aa\u01c5\u02b0\u00df\u6771\u05d0")
    if (c != 0) CHECK((is_letter(c) && !is_number(c)));
  for (char32_t c : U"09\u00bd\u00b2\u2163\u0663")
    if (c != 0) CHECK((is_number(c) && !is_letter(c)));
  for (char32_t c : U"_. '\n\u0301\u200d\u20ac\U0001f600\u00a0")
    CHECK_FALSE((is_number(c) || is_letter(c)));
}

TEST_CASE("white space is Unicode's") {
  std::u32string found;
  for (char32_t c = 0; c < 0x110000; ++c)
    if (is_white_space(c)) found += c;
  // PropList.txt of Unicode 15
  CHECK((found ==
         U"\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
         U"\u2009\u200a\u2028\u2029\u202f\u205f\u3000"));
}

}  // namespace
}  // namespace headlab::test_utf8
