// IDX files of images and of labels, plain and gzip.
#include <algorithm>

#include "experiments/data/formats/gzip.h"
#include "experiments/data/formats/idx.h"
#include "tests/fuzz/fuzzing.h"

namespace headlab {
namespace {

struct HeaderRead {};

// What a gzip's header announces, which may be unpacked: but no more than a gzip can hold.
size_t announced(std::string_view bytes, size_t rank) {
  constexpr size_t kMostOfAByte = 1032;
  std::string header;
  try {
    inflate_gzip(bytes, "a", [&](std::span<const uint8_t> block) {
      header.append(block.begin(), block.end());
      if (header.size() >= 4 + 4 * rank) throw HeaderRead();
    });
  } catch (const HeaderRead&) {
  } catch (const std::exception&) {
    return 0;
  }
  if (header.size() < 4 + 4 * rank) return 0;
  size_t count = 1;
  for (size_t at = 4; at < 4 + 4 * rank; ++at)
    if (at % 4 == 0) {
      size_t length = 0;
      for (size_t i = at; i < at + 4; ++i) length = length << 8 | static_cast<uint8_t>(header[i]);
      count = std::min(kMostOfAByte * bytes.size(), count * std::min<size_t>(length, 1 << 30));
    }
  return count;
}

}  // namespace
}  // namespace headlab

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const int64_t rank : {1, 3}) {
    const size_t unpacked = is_gzip(bytes) ? announced(bytes, rank) : 0;
    fuzzing::parse(
        size, "a.idx",
        [&] {
          const auto array = parse_idx(bytes, rank, "a.idx");
          size_t count = 1;
          for (const auto length : array.sizes) count *= length;
          fuzzing::require(array.values.size() == count, "the values are not those of the sizes");
        },
        unpacked);
  }
  return 0;
}
