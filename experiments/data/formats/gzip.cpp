#include "experiments/data/formats/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "core/errors.h"

namespace headlab {
namespace {

constexpr size_t kBlock = 1 << 16;

class Inflater {
 public:
  Inflater() {
    constexpr int kOnlyGzip = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kOnlyGzip) != Z_OK)
      throw std::runtime_error("zlib cannot begin");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream* operator->() { return &stream_; }
  int step() { return inflate(&stream_, Z_NO_FLUSH); }

 private:
  z_stream stream_{};
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

void inflate_gzip(std::string_view bytes, const std::string& name, const TakeBlock& take) {
  const auto fail = [&](const std::string& what) { throw DataError(name + ": " + what); };
  Inflater inflater;
  std::array<uint8_t, kBlock> block;
  std::string_view rest = bytes;
  int state = Z_OK;
  while (state != Z_STREAM_END) {
    const size_t given = std::min<size_t>(rest.size(), std::numeric_limits<uInt>::max());
    // zlib reads only, but does not say so.
    inflater->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));
    inflater->avail_in = static_cast<uInt>(given);
    inflater->next_out = block.data();
    inflater->avail_out = kBlock;
    state = inflater.step();
    if (state == Z_BUF_ERROR) fail("the gzip ends too early; it is truncated");
    if (state != Z_OK && state != Z_STREAM_END)
      fail(fmt::format("the gzip is damaged: {}", inflater->msg ? inflater->msg : "zlib gives up"));
    rest.remove_prefix(given - inflater->avail_in);
    const size_t made = kBlock - inflater->avail_out;
    if (made > 0) take(std::span(block).first(made));
  }
  if (!rest.empty()) fail(fmt::format("{} bytes follow the end of the gzip", rest.size()));
}

}  // namespace headlab
