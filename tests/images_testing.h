// Files of images, made for tests: IDX, gzip, records of CIFAR-10.
#pragma once

#include <zlib.h>

#include <numeric>
#include <stdexcept>

#include "tests/data_testing.h"

namespace headlab::testing {

inline std::string gzip(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzip = 16, kMemory = 8;
  if (deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + kGzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("zlib cannot begin");
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// A header alone: `type` 0x08 are unsigned bytes.
inline std::string idx_header(const std::vector<uint32_t>& sizes, char type = 0x08) {
  std::string bytes{0, 0, type, static_cast<char>(sizes.size())};
  for (uint32_t size : sizes)
    for (int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift & 0xFF);
  return bytes;
}

// Bytes first, first + 1, ... (mod `modulus`).
inline std::string counting(size_t count, int modulus = 256, int first = 0) {
  std::string bytes(count, '\0');
  for (size_t n = 0; n < count; ++n)
    bytes[n] = static_cast<char>((first + static_cast<int>(n)) % modulus);
  return bytes;
}

// N images of 2x3 pixels, of which byte n of all is n, with labels n mod 10.
inline void write_images(const Folder& folder, uint32_t N, const std::string& prefix = "") {
  folder.write(prefix + "images", idx_header({N, 2, 3}) + counting(N * 6));
  folder.write(prefix + "labels", idx_header({N}) + counting(N, 10));
}

}  // namespace headlab::testing
