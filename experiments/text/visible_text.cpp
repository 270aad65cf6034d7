#include "experiments/text/visible_text.h"

#include <fmt/format.h>

#include <cstdint>

#include "experiments/text/utf8.h"

namespace headlab {
namespace {

// The code point of the bytes of one, which are UTF-8.
char32_t code_point_of(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() == 1) return lead;
  char32_t point = lead & (0x7Fu >> bytes.size());
  for (const char c : bytes.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  return point;
}

bool turns_lines(char32_t point) {
  return point == 0x61C || point == 0x200E || point == 0x200F ||
         (point >= 0x2028 && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
}

bool is_obeyed(char32_t point) {
  return point < 0x20 || (point >= 0x7F && point < 0xA0) || turns_lines(point);
}

std::string shown(std::string_view text, bool one_line) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
      continue;
    }
    const auto bytes = text.substr(at, length);
    const auto point = code_point_of(bytes);
    at += length;
    if (point == '\n' || point == '\t')
      out += !one_line ? std::string(bytes) : point == '\n' ? "\\n" : "\\t";
    else if (is_obeyed(point))
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(point));
    else
      out += bytes;
  }
  return out;
}

}  // namespace

std::string visible_text(std::string_view text) { return shown(text, false); }

std::string visible_line(std::string_view text) { return shown(text, true); }

}  // namespace headlab
