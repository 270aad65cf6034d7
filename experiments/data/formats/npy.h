// .npy, NumPy's format of one array
// (numpy.org/doc/stable/reference/generated/numpy.lib.format.html): a magic word, a version, a
// header of Python's syntax, the values. No torch in here.
#pragma once

#include <filesystem>

#include "experiments/files/safetensors.h"

namespace headlab {

// A checked file, mapped into memory for the object's life; the entry points into the map.
class NpyFile {
 public:
  // Strict: DataError `path: what is wrong` for anything but a whole array of numbers,
  // little-endian, the last index fastest, with nothing behind it.
  explicit NpyFile(const std::filesystem::path& path);
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;

  const TensorEntry& entry() const { return entry_; }  // named by the file's stem

 private:
  MappedFile map_;
  TensorEntry entry_;
};

}  // namespace headlab
