// SHA-256 of bytes and files, as 64 hexadecimal digits. No torch in here.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace headlab {

std::string sha256(std::string_view bytes);
std::string sha256_of_file(const std::filesystem::path& path);  // DataError as MappedFile

}  // namespace headlab
