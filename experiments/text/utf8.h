// UTF-8 <-> code points (RFC 3629), by utf8proc.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "core/errors.h"

namespace headlab {

// A text has bytes that are not UTF-8.
class NotUtf8 : public DataError {
 public:
  using DataError::DataError;
};

// Bytes of the code point at `at`, 0 where none is: a broken or overlong sequence, a surrogate, a
// value above U+10FFFF, the end of the text.
size_t utf8_length(std::string_view text, size_t at);

// Bytes at the end of a text that are the beginning of a code point and lack its rest.
size_t utf8_unfinished(std::string_view text);

// The code point that begins at `at`, or that ends there; kNoCharacter where none does.
inline constexpr char32_t kNoCharacter = 0xFFFFFFFF;
char32_t code_point_at(std::string_view text, size_t at);
char32_t code_point_before(std::string_view text, size_t at);

// Calls `take` with one code point after the other. NotUtf8 `where: byte N (0xE9) is not UTF-8`
// for anything that no encoder writes.
void decode_utf8(std::string_view text, const std::string& where,
                 const std::function<void(char32_t)>& take);
std::u32string decode_utf8(std::string_view text, const std::string& where);

std::string encode_utf8(char32_t code_point);

// The text with U+FFFD in place of what is not UTF-8, one for each sequence that breaks off and
// each byte that begins none (Unicode 15, "maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

bool is_white_space(char32_t code_point);  // Unicode's White_Space
bool is_letter(char32_t code_point);       // categories L*
bool is_number(char32_t code_point);       // categories N*

// Bytes begin .. end - 1 of a text.
struct TextRange {
  size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

}  // namespace headlab
