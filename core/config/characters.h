// The characters of a text: code points of UTF-8, and case.
#pragma once

#include <utf8proc.h>

#include <cctype>
#include <string>

namespace headlab {

// The code point at a byte of a text. Where there is none (RFC 3629), `bytes` is 0.
struct CodePoint {
  utf8proc_int32_t value = -1;
  size_t bytes = 0;
};
inline CodePoint code_point(const std::string& text, size_t at) {
  CodePoint found;
  const auto bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(&text[at]),
                       static_cast<utf8proc_ssize_t>(text.size() - at), &found.value);
  if (bytes > 0) found.bytes = static_cast<size_t>(bytes);
  return found;
}

inline std::string lowercase(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace headlab
