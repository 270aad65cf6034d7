// IDX, the format of MNIST's files (yann.lecun.com/exdb/mnist): two zero bytes, the type of the
// values, the number of sizes, the sizes as big-endian uint32, the values; plain or gzip. No torch
// in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace headlab {

// Values of one byte each, the last index fastest.
struct IdxArray {
  std::vector<int64_t> sizes;
  std::vector<uint8_t> values;
};

// Strict: DataError `path: what is wrong` for anything but an array of bytes of this rank, whole
// and with nothing behind it. What the header claims is believed only as far as the file goes;
// what a gzip may unpack to is bounded by its size.
IdxArray read_idx(const std::filesystem::path& path, int64_t rank);
// The same of a file's bytes; `name` stands for the path.
IdxArray parse_idx(std::string_view bytes, int64_t rank, const std::string& name);

}  // namespace headlab
