// All of a file at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "experiments/files/regular_file.h"

namespace headlab {

// Its bytes; "" where it cannot be read, is no regular file, or is larger than what we keep in such
// files (256 MiB).
inline std::string file_text(const std::filesystem::path& path) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  return read_regular(path, kMost).value_or("");
}

}  // namespace headlab
