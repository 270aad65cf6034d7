// All of a file at once.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace headlab {

// Its bytes; "" where it cannot be read.
inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace headlab
