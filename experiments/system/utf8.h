// UTF-8 <-> code points (RFC 3629).
#pragma once

#include <string>
#include <string_view>

namespace headlab {

// DataError `where: byte N (0xE9) is not UTF-8` for anything that no encoder writes.
std::u32string decode_utf8(std::string_view text, const std::string& where);

std::string encode_utf8(char32_t code_point);

}  // namespace headlab
