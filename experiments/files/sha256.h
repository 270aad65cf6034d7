// SHA-256 of bytes and files, as 64 hexadecimal digits. No torch in here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "experiments/files/mapped_file.h"

namespace headlab {

// Of bytes that come one after the other.
class Sha256 {
 public:
  Sha256();
  void add(const void* bytes, size_t count);
  std::string text();  // once, in the end

 private:
  std::shared_ptr<void> context_;
};

std::string sha256(std::string_view bytes);
std::string sha256_of_file(const std::filesystem::path& path);  // DataError as MappedFile
// Of bytes of a mapped file, which then count as memory in use no more (MappedFile::forget).
std::string sha256_of_part(const MappedFile& file, size_t begin, size_t count);

}  // namespace headlab
