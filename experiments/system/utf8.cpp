#include "experiments/system/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include "core/errors.h"

namespace headlab {
namespace {

struct Sequence {
  size_t length = 0;  // 0: there is none
  char32_t code_point = 0;
};

Sequence sequence_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  utf8proc_int32_t code_point = 0;
  const auto length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                       static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
  if (length <= 0) return {};
  return {static_cast<size_t>(length), static_cast<char32_t>(code_point)};
}

}  // namespace

size_t utf8_length(std::string_view text, size_t at) { return sequence_at(text, at).length; }

std::u32string decode_utf8(std::string_view text, const std::string& where) {
  std::u32string code_points;
  code_points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [length, code_point] = sequence_at(text, at);
    if (length == 0) {
      throw DataError(fmt::format(
          "{}: byte {} (0x{:02X}) is not UTF-8; convert the text, or read it with kind bytes",
          where, at, static_cast<unsigned char>(text[at])));
    }
    code_points.push_back(code_point);
    at += length;
  }
  return code_points;
}

std::string encode_utf8(char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  return {bytes, bytes + length};
}

}  // namespace headlab
