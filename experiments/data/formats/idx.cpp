#include "experiments/data/formats/idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "core/errors.h"
#include "experiments/data/formats/gzip.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

constexpr uint8_t kByteType = 0x08;
// What a gzip, which packs zeros a thousandfold, may unpack to: all 60,000 images of 28x28 however
// small their file, and beyond that as many times the file as no photographs reach.
constexpr uint64_t kAnyUnpacked = 48 << 20, kUnpackedPerByte = 24;
constexpr uint64_t kDeflated = 1032;   // times its size, at most, is what deflate unpacks to
constexpr size_t kBelieved = 1 << 20;  // values that have come, before there is room for all
constexpr uint64_t kMostValues = uint64_t{1} << 40;  // far beyond any memory, far from overflow

// Takes a file's bytes in parts, as they come.
class IdxReader {
 public:
  IdxReader(int64_t rank, const std::string& name)
      : rank_(rank), header_size_(4 + 4 * static_cast<size_t>(rank)), name_(name) {}

  void add(std::span<const uint8_t> part) {
    const size_t of_header = std::min(part.size(), header_size_ - header_.size());
    header_.insert(header_.end(), part.begin(), part.begin() + of_header);
    if (of_header > 0 && header_.size() == header_size_) read_header();
    const auto values = part.subspan(of_header);
    if (values.size() > count_ - array_.values.size())
      fail(fmt::format("holds more than the {} bytes that its header announces, of sizes {}",
                       count_, sizes()));
    array_.values.insert(array_.values.end(), values.begin(), values.end());
  }

  // Of a gzip of so many bytes: refuses one that announces what no such file holds.
  void allow(size_t packed) {
    const uint64_t most = kAnyUnpacked + kUnpackedPerByte * packed;
    if (count_ > most)
      fail(
          fmt::format("announces {} bytes of values, of sizes {}, and is a gzip of {}, of which at "
                      "most {} are unpacked; where that is right, unpack it with gunzip",
                      count_, sizes(), packed, most));
    if (array_.values.size() >= kBelieved)
      array_.values.reserve(std::min<uint64_t>(count_, kDeflated * packed));
  }

  // Of a file whose bytes all lie there: before any are copied.
  void expect(size_t file_size) {
    if (header_.size() < header_size_) return;
    const size_t there = file_size - header_size_;
    if (there < count_) fail_short(there);
    array_.values.reserve(count_);
  }

  IdxArray finish() {
    if (header_.size() < header_size_)
      fail(fmt::format("is no IDX file of {} sizes: its {} bytes are less than a header of {}",
                       rank_, header_.size(), header_size_));
    if (array_.values.size() < count_) fail_short(array_.values.size());
    return std::move(array_);
  }

  size_t header_size() const { return header_size_; }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw DataError(name_ + ": " + what); }
  [[noreturn]] void fail_short(size_t there) const {
    fail(
        fmt::format("holds {} bytes of values, but its header announces {}, of sizes {}; it is "
                    "truncated",
                    there, count_, sizes()));
  }
  std::string sizes() const { return fmt::format("{}", fmt::join(array_.sizes, "x")); }

  void read_header() {
    if (header_[0] != 0 || header_[1] != 0)
      fail(fmt::format("is no IDX file: it begins with the bytes {:02x} {:02x}, not 00 00",
                       header_[0], header_[1]));
    if (header_[2] != kByteType)
      fail(fmt::format("holds values of IDX type 0x{:02x}; only unsigned bytes, 0x{:02x}, are read",
                       header_[2], kByteType));
    if (header_[3] != rank_)
      fail(fmt::format("has {} sizes where {} are due; are images and labels exchanged?",
                       header_[3], rank_));
    count_ = 1;
    for (size_t at = 4; at < header_size_; at += 4) {
      const uint64_t size = uint64_t{header_[at]} << 24 | uint64_t{header_[at + 1]} << 16 |
                            uint64_t{header_[at + 2]} << 8 | header_[at + 3];
      if (size == 0) fail("is empty: one of its sizes is 0");
      array_.sizes.push_back(static_cast<int64_t>(size));
      if (count_ > kMostValues / size)
        fail(fmt::format("announces sizes {}..., more than any file holds", sizes()));
      count_ *= size;
    }
  }

  int64_t rank_;
  size_t header_size_;
  const std::string& name_;
  std::vector<uint8_t> header_;
  uint64_t count_ = 0;  // of values, as the header says
  IdxArray array_;
};

}  // namespace

IdxArray parse_idx(std::string_view bytes, int64_t rank, const std::string& name) {
  IdxReader reader(rank, name);
  if (is_gzip(bytes)) {
    inflate_gzip(bytes, name, [&](std::span<const uint8_t> block) {
      reader.add(block);
      reader.allow(bytes.size());
    });
  } else {
    const std::span all(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    const auto header = all.first(std::min(all.size(), reader.header_size()));
    reader.add(header);
    reader.expect(all.size());
    reader.add(all.subspan(header.size()));
  }
  return reader.finish();
}

IdxArray read_idx(const std::filesystem::path& path, int64_t rank) {
  const MappedFile file(path);
  return parse_idx(file.text(), rank, path.string());
}

}  // namespace headlab
