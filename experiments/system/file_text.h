// All of a file at once.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace headlab {

// Its bytes; "" where it cannot be read.
inline std::string file_text(const std::filesystem::path& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) return {};
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace headlab
