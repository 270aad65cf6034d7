// safetensors files: a strict reader over a memory map and an atomic writer. No torch in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/files/mapped_file.h"

namespace headlab {

// Tables are in this order.
enum class Dtype { kBool, kU8, kI8, kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kI64, kU64, kF64 };

std::string_view dtype_name(Dtype dtype);  // as the header spells it: "BOOL", "U8", ... "F64"
size_t dtype_size(Dtype dtype);            // bytes of one element

// One tensor, row-major and little-endian. `data` is borrowed and need not be aligned.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // {}: a scalar
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A checked file, mapped into memory for the object's life; entries point into the map.
class SafetensorsFile {
 public:
  // Throws DataError `path: what is wrong` unless every byte of the file is accounted for: the
  // header is JSON of exactly the format's schema without duplicate keys, each tensor's bytes
  // match its dtype and shape, and the tensors cover the data without hole or overlap.
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<TensorEntry>& entries() const { return entries_; }  // sorted by name
  const TensorEntry* find(std::string_view name) const;                 // null when absent
  void forget(const TensorEntry& entry) const { map_.forget(entry.data, entry.bytes); }

 private:
  void read(const std::byte* data, size_t size);

  MappedFile map_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorEntry> entries_;
};

// Writes a file that any safetensors reader accepts: names sorted, header padded to a multiple of
// 8, tensors aligned to their element size, metadata {"format": "pt"} plus the caller's. It is
// written under a temporary name in the same directory, synced and renamed, so that `path` holds
// the old file or the whole new one at any moment. Throws RunError where the storage refuses,
// std::invalid_argument where an entry is no tensor or a name is taken twice.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                       std::map<std::string, std::string> metadata = {});

}  // namespace headlab
