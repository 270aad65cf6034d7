#include "experiments/system/utf8.h"

#include <fmt/format.h>

#include "core/errors.h"

namespace headlab {

namespace {

// Bytes of the sequence that starts with `first`, 0 where none does.
size_t sequence_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

// Reads the code point at `at` and moves behind it; false where there is none.
bool next_code_point(std::string_view text, size_t& at, char32_t& code_point) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t length = sequence_length(first);
  if (length == 0 || at + length > text.size()) return false;
  code_point = length == 1 ? first : first & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[at + i]);
    if ((byte & 0xC0) != 0x80) return false;
    code_point = code_point << 6 | (byte & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};  // longer than needed: refused
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (code_point < kSmallest[length] || code_point > 0x10FFFF || surrogate) return false;
  at += length;
  return true;
}

}  // namespace

std::u32string decode_utf8(std::string_view text, const std::string& where) {
  std::u32string code_points;
  code_points.reserve(text.size());
  char32_t code_point = 0;
  for (size_t at = 0; at < text.size(); code_points.push_back(code_point))
    if (!next_code_point(text, at, code_point))
      throw DataError(
          fmt::format("{}: byte {} (0x{:02X}) is not UTF-8; convert the text, or read "
                      "it with kind bytes",
                      where, at, static_cast<unsigned char>(text[at])));
  return code_points;
}

std::string encode_utf8(char32_t code_point) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | (code_point >> shift & 0x3F));
  };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace headlab
