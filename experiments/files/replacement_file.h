// A file that is replaced whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace headlab {

// A new file beside `path`, under a temporary name, that takes the place of `path` on commit() and
// vanishes otherwise: whoever opens `path` finds the old bytes or all of the new ones, also after
// a crash. Throws RunError `path: cannot be written: reason`.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& path);
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;
  ~ReplacementFile();

  const std::filesystem::path& temporary() const { return temporary_; }  // until commit()
  void write(const void* data, size_t size);
  void commit();  // once, after the last write

 private:
  [[noreturn]] void fail() const;  // with errno

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

// Puts `bytes` in the place of a file's content by a ReplacementFile.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

// Returns when names made, changed or removed in a directory ("" = ".") have reached the disk.
// RunError as above.
void sync_directory(const std::filesystem::path& directory);

}  // namespace headlab
