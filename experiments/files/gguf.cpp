// The layout: "GGUF", u32 version, u64 tensors, u64 pairs; pairs: text, u32 type, value; tensors:
// text, u32 dimensions, u64 each (fastest first), u32 type, u64 offset from the start of the data,
// which is the next multiple of general.alignment. Little-endian. (ggml's docs/gguf.md)
#include "experiments/files/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "core/errors.h"

namespace headlab {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kVersion = 3;
constexpr size_t kMostDimensions = 4;

enum ValueType : uint32_t { kText = 8, kArray = 9, kU64 = 10 };  // the others are in the table

template <class T>
T at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
GgufValue whole(const std::byte* from) {
  const T number = at<T>(from);
  if (std::cmp_greater(number, std::numeric_limits<int64_t>::max()))
    return static_cast<double>(number);
  return static_cast<int64_t>(number);
}
template <class T>
GgufValue real(const std::byte* from) {
  return double{at<T>(from)};
}
GgufValue truth(const std::byte* from) { return at<uint8_t>(from) != 0; }

struct NumberType {
  size_t size;                           // bytes of one
  GgufValue (*value)(const std::byte*);  // null: no number
};
constexpr NumberType kNumbers[] = {{1, whole<uint8_t>}, {1, whole<int8_t>},   {2, whole<uint16_t>},
                                   {2, whole<int16_t>}, {4, whole<uint32_t>}, {4, whole<int32_t>},
                                   {4, real<float>},    {1, truth},           {0, nullptr},
                                   {0, nullptr},        {8, whole<uint64_t>}, {8, whole<int64_t>},
                                   {8, real<double>}};

// Bytes of a block, and numbers in it.
struct Block {
  size_t bytes;
  int64_t numbers;
};

std::optional<Block> block_of(uint32_t type) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kF32:
      return Block{4, 1};
    case GgufType::kF16:
    case GgufType::kBF16:
      return Block{2, 1};
    case GgufType::kQ4_1:
      return Block{20, kGgufBlock};
    case GgufType::kQ8_0:
      return Block{34, kGgufBlock};
  }
  return std::nullopt;
}

class Reader {
 public:
  Reader(const std::string& name, std::string_view text) : name_(name), text_(text) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", name_, what));
  }
  size_t place() const { return place_; }
  size_t left() const { return text_.size() - place_; }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view text() { return bytes(number<uint64_t>()); }
  // How many of something there are, of which each takes so many bytes at least.
  size_t count(size_t least) {
    const auto n = number<uint64_t>();
    if (n > left() / least) refuse(fmt::format("says it has {} of what {} bytes hold", n, left()));
    return n;
  }
  GgufValue value(const std::string& key, uint32_t type);

 private:
  std::string_view bytes(uint64_t n) {
    if (n > left()) refuse("is cut short: it ends before its header does");
    place_ += n;
    return text_.substr(place_ - n, n);
  }
  GgufValue array(const std::string& key);

  const std::string& name_;
  std::string_view text_;
  size_t place_ = 0;
};

GgufValue Reader::value(const std::string& key, uint32_t type) {
  if (type == kText) return text();
  if (type == kArray) return array(key);
  if (type >= std::size(kNumbers)) refuse(fmt::format("{} has type {}, which is none", key, type));
  const auto [size, read] = kNumbers[type];
  auto value = read(reinterpret_cast<const std::byte*>(bytes(size).data()));
  if (type == kU64 && std::holds_alternative<double>(value)) refuse(key + " is beyond 2^63");
  return value;
}

GgufValue Reader::array(const std::string& key) {
  const auto type = number<uint32_t>();
  if (type == kText) {
    std::vector<std::string_view> texts(count(sizeof(uint64_t)));
    for (auto& one : texts) one = text();
    return texts;
  }
  if (type == kArray) refuse(key + " has arrays in arrays, which are not known here");
  if (type >= std::size(kNumbers)) refuse(fmt::format("{} has type {}, which is none", key, type));
  const size_t size = kNumbers[type].size, n = count(size);
  return GgufNumbers{type, bytes(n * size)};
}

float half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00)  // infinite, or no number
    return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  // By a whole number: the float of these bits would be subnormal, and count as 0 in a thread that
  // flushes such.
  const float value = static_cast<float>(rest) * 0x1p-24F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

void dequantise(GgufType type, const std::byte* block, float* to) {
  const float scale = half(at<uint16_t>(block));
  if (type == GgufType::kQ8_0) {
    for (int64_t i = 0; i < kGgufBlock; ++i)
      to[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    return;
  }
  const float least = half(at<uint16_t>(block + 2));  // Q4_1
  for (int64_t i = 0; i < kGgufBlock / 2; ++i) {
    const auto pair = static_cast<uint8_t>(block[4 + i]);
    to[i] = scale * static_cast<float>(pair & 0xF) + least;
    to[i + kGgufBlock / 2] = scale * static_cast<float>(pair >> 4) + least;
  }
}

GgufTensor read_tensor(Reader& reader, uint64_t* offset) {
  GgufTensor tensor{.name = std::string(reader.text())};
  const auto dimensions = reader.number<uint32_t>();
  if (dimensions > kMostDimensions)
    reader.refuse(fmt::format("{} has {} dimensions", tensor.name, dimensions));
  tensor.numbers = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = reader.number<uint64_t>();
    int64_t all = 0;
    if (size > uint64_t{std::numeric_limits<int64_t>::max()} ||
        __builtin_mul_overflow(tensor.numbers, static_cast<int64_t>(size), &all))
      reader.refuse(tensor.name + " has more numbers than there can be");
    tensor.numbers = all;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const auto type = reader.number<uint32_t>();
  const auto block = block_of(type);
  if (!block)
    reader.refuse(
        fmt::format("{} is kept in type {}; F32 (0), F16 (1), Q4_1 (3), Q8_0 (8) and "
                    "BF16 (30) are known here",
                    tensor.name, type));
  tensor.type = static_cast<GgufType>(type);
  if (block->numbers > 1 && (tensor.shape.empty() || tensor.shape.back() % block->numbers != 0))
    reader.refuse(fmt::format("{}: rows of its type are a multiple of {} numbers", tensor.name,
                              block->numbers));
  const auto blocks = static_cast<uint64_t>(tensor.numbers / block->numbers);
  if (__builtin_mul_overflow(blocks, uint64_t{block->bytes}, &tensor.bytes))
    reader.refuse(tensor.name + " has more numbers than there can be");
  *offset = reader.number<uint64_t>();
  return tensor;
}

}  // namespace

size_t GgufNumbers::size() const { return bytes.size() / kNumbers[type].size; }

double GgufNumbers::operator[](size_t i) const {
  const auto& [size, value] = kNumbers[type];
  return *number_in(value(reinterpret_cast<const std::byte*>(bytes.data()) + i * size));
}

std::optional<double> number_in(const GgufValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? 1 : 0;
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

GgufFile::GgufFile(const std::filesystem::path& path) : map_(path) {
  const std::string name = path.string();
  Reader reader(name, map_.text());
  if (!map_.text().starts_with("GGUF")) reader.refuse("is no GGUF file");
  reader.number<uint32_t>();
  if (const auto version = reader.number<uint32_t>(); version != kVersion)
    reader.refuse(fmt::format("is GGUF version {}; {} is known here", version, kVersion));
  constexpr size_t kLeastTensor = 24, kLeastPair = 13;
  const size_t tensors = reader.count(kLeastTensor), pairs = reader.count(kLeastPair);
  for (size_t i = 0; i < pairs; ++i) {
    const std::string key(reader.text());
    const auto type = reader.number<uint32_t>();
    if (!metadata_.emplace(key, reader.value(key, type)).second)
      reader.refuse(key + " is there twice");
  }
  std::vector<std::pair<GgufTensor*, uint64_t>> offsets;
  for (size_t i = 0; i < tensors; ++i) {
    uint64_t offset = 0;
    auto tensor = read_tensor(reader, &offset);
    const auto key = tensor.name;
    const auto [place, fresh] = tensors_.emplace(key, std::move(tensor));
    if (!fresh) reader.refuse(key + " is there twice");
    offsets.emplace_back(&place->second, offset);
  }

  int64_t alignment = 32;
  if (const auto found = metadata_.find("general.alignment"); found != metadata_.end()) {
    const auto* value = std::get_if<int64_t>(&found->second);
    if (!value || *value < 1 || *value > 1 << 20 || (*value & (*value - 1)) != 0)
      reader.refuse("general.alignment must be a power of 2");
    alignment = *value;
  }
  const auto align = static_cast<size_t>(alignment);
  const auto aligned = [&](size_t place) { return (place + align - 1) / align * align; };
  const size_t start = aligned(reader.place());
  // Behind each other in the order of the header, as llama.cpp's reader wants them.
  size_t next = 0;
  for (auto& [tensor, offset] : offsets) {
    if (offset != next)
      reader.refuse(
          fmt::format("{} has offset {}, and {} is the next one behind the tensors before "
                      "it, padded to {} bytes",
                      tensor->name, offset, next, align));
    if (start > map_.size() || offset > map_.size() - start ||
        tensor->bytes > map_.size() - start - offset)
      reader.refuse(tensor->name + " ends behind the end of the file");
    tensor->data = map_.data() + start + offset;
    next = aligned(offset + tensor->bytes);
  }
}

void GgufFile::numbers(const GgufTensor& tensor, int64_t begin, int64_t count, float* to) {
  if (count == 0) return;  // an empty tensor's numbers may have no place
  switch (tensor.type) {
    case GgufType::kF32:
      std::memcpy(to, tensor.data + begin * 4, static_cast<size_t>(count) * 4);
      return;
    case GgufType::kF16:
      for (int64_t i = 0; i < count; ++i) to[i] = half(at<uint16_t>(tensor.data + (begin + i) * 2));
      return;
    case GgufType::kBF16:
      for (int64_t i = 0; i < count; ++i)
        to[i] = std::bit_cast<float>(uint32_t{at<uint16_t>(tensor.data + (begin + i) * 2)} << 16);
      return;
    case GgufType::kQ4_1:
    case GgufType::kQ8_0: {
      const auto block = *block_of(static_cast<uint32_t>(tensor.type));
      for (int64_t i = 0; i < count; i += kGgufBlock)
        dequantise(tensor.type, tensor.data + (begin + i) / kGgufBlock * block.bytes, to + i);
    }
  }
}

}  // namespace headlab
