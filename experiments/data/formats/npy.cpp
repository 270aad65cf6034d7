#include "experiments/data/formats/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "core/errors.h"

namespace headlab {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// Of the header's types those that safetensors has, too.
std::optional<Dtype> dtype_of(std::string_view text) {
  constexpr std::pair<std::string_view, Dtype> kTypes[] = {
      {"|b1", Dtype::kBool}, {"|u1", Dtype::kU8},  {"|i1", Dtype::kI8},  {"<i2", Dtype::kI16},
      {"<u2", Dtype::kU16},  {"<f2", Dtype::kF16}, {"<i4", Dtype::kI32}, {"<u4", Dtype::kU32},
      {"<f4", Dtype::kF32},  {"<i8", Dtype::kI64}, {"<u8", Dtype::kU64}, {"<f8", Dtype::kF64}};
  for (const auto& [name, type] : kTypes)
    if (name == text) return type;
  return std::nullopt;
}

// What stands behind 'key': in the header, up to the end of the value.
std::string_view value_of(std::string_view header, std::string_view key) {
  const auto at = header.find(fmt::format("'{}':", key));
  if (at == header.npos) return {};
  auto rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  if (rest.starts_with('(')) return rest.substr(0, rest.find(')') + 1);
  return rest.substr(0, rest.find_first_of(",}"));
}

// "(3, 4)", "(3,)", "()"; none: something else.
std::optional<std::vector<int64_t>> shape_of(std::string_view text) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::vector<int64_t> sizes;
  while (!text.empty()) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size < 0) return std::nullopt;
    sizes.push_back(size);
    text.remove_prefix(end - text.data());
    if (text.starts_with(',')) text.remove_prefix(1);
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  return sizes;
}

}  // namespace

NpyFile::NpyFile(const std::filesystem::path& path) : map_(path) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: {}", path.string(), what));
  };
  const auto bytes = map_.text();
  const auto byte = [&](size_t n) { return static_cast<size_t>(static_cast<uint8_t>(bytes[n])); };
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) fail("is no .npy file");
  const bool first = byte(6) == 1;
  const size_t begin = first ? 10 : 12;
  const size_t length = byte(8) | byte(9) << 8 | (first ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > bytes.size() - begin) fail("ends within its header");
  const auto header = bytes.substr(begin, length);
  const auto descr = value_of(header, "descr"), order = value_of(header, "fortran_order");
  const auto dtype = dtype_of(descr.size() > 2 ? descr.substr(1, descr.size() - 2) : descr);
  if (!dtype)
    fail(fmt::format("holds values of type {}, and these are no little-endian numbers", descr));
  if (order != "False") fail("is written column by column; numpy.ascontiguousarray() turns it");
  const auto shape = shape_of(value_of(header, "shape"));
  if (!shape) fail("has a header without a shape");
  entry_ = {.name = path.stem().string(), .dtype = *dtype, .shape = *shape};
  size_t wanted = dtype_size(*dtype);
  for (const int64_t size : *shape) {
    if (size > 0 && wanted > std::numeric_limits<size_t>::max() / static_cast<size_t>(size))
      fail("claims more values than a file can hold");
    wanted *= static_cast<size_t>(size);
  }
  entry_.data = map_.data() + begin + length;
  entry_.bytes = bytes.size() - begin - length;
  if (entry_.bytes != wanted)
    fail(fmt::format("holds {} bytes of values, and its header claims {}", entry_.bytes, wanted));
}

}  // namespace headlab
