#include "experiments/text/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "experiments/text/unicode_tables.h"

namespace headlab {
namespace {

struct Sequence {
  size_t length = 0;  // 0: there is none
  char32_t code_point = 0;
};

Sequence sequence_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {1, byte};
  utf8proc_int32_t code_point = 0;
  const auto length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                       static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
  if (length <= 0) return {};
  return {static_cast<size_t>(length), static_cast<char32_t>(code_point)};
}

}  // namespace

size_t utf8_length(std::string_view text, size_t at) { return sequence_at(text, at).length; }

size_t utf8_unfinished(std::string_view text) {
  for (size_t count = std::min<size_t>(3, text.size()); count > 0; --count) {
    // The least and the greatest rest that a code point may have.
    for (const char rest : {'\x80', '\xBF'}) {
      std::string whole(text.substr(text.size() - count));
      while (whole.size() < 4) {
        whole += rest;
        if (utf8_length(whole, 0) == whole.size()) return count;
      }
    }
  }
  return 0;
}

char32_t code_point_at(std::string_view text, size_t at) {
  const auto [length, code_point] = sequence_at(text, at);
  return length == 0 ? kNoCharacter : code_point;
}

char32_t code_point_before(std::string_view text, size_t at) {
  for (size_t begin = at; begin > 0 && at - begin < 4;) {
    const auto byte = static_cast<unsigned char>(text[--begin]);
    if (byte >= 0x80 && byte < 0xC0) continue;  // of one that begins before
    const auto [length, code_point] = sequence_at(text, begin);
    return length == at - begin ? code_point : kNoCharacter;
  }
  return kNoCharacter;
}

void decode_utf8(std::string_view text, const std::string& where,
                 const std::function<void(char32_t)>& take) {
  for (size_t at = 0; at < text.size();) {
    const auto [length, code_point] = sequence_at(text, at);
    if (length == 0) {
      throw NotUtf8(fmt::format(
          "{}: byte {} (0x{:02X}) is not UTF-8; convert the text, or read it with kind bytes",
          where, at, static_cast<unsigned char>(text[at])));
    }
    take(code_point);
    at += length;
  }
}

std::u32string decode_utf8(std::string_view text, const std::string& where) {
  std::u32string code_points;
  code_points.reserve(text.size());
  decode_utf8(text, where, [&](char32_t c) { code_points.push_back(c); });
  return code_points;
}

std::string encode_utf8(char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  return {bytes, bytes + length};
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    size_t length = utf8_length(text, at);
    if (length > 0) {
      valid += text.substr(at, length);
    } else {
      length = 3;  // of a beginning, which a whole code point is longer than
      while (length > 1 && utf8_unfinished(text.substr(at, length)) != length) --length;
      valid += "\uFFFD";
    }
    at += length;
  }
  return valid;
}

bool is_white_space(char32_t code_point) {
  if ((code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
}

bool is_letter(char32_t code_point) { return is_in(code_point, kLetters); }
bool is_number(char32_t code_point) { return is_in(code_point, kNumbers); }

}  // namespace headlab
