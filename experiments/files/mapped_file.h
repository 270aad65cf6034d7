// A regular file mapped into memory to read. No torch in here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "experiments/files/file_stamp.h"

namespace headlab {

class MappedFile {
 public:
  // Throws DataError `path: what is wrong` for what cannot be read or is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }  // null when the file is empty
  size_t size() const { return size_; }            // bytes
  // Lets go of these bytes until they are read again: they no longer count as memory in use.
  void forget(const std::byte* begin, size_t bytes) const;
  const FileStamp& stamp() const { return stamp_; }  // when it was opened
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  FileStamp stamp_;
};

}  // namespace headlab
