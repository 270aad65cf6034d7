// safetensors: u64 little-endian n, n bytes of JSON, data. Stricter than the reference reader,
// which lets a duplicate tensor name and a leading space pass.
#include "experiments/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "core/errors.h"
#include "experiments/files/json_place.h"
#include "experiments/files/replacement_file.h"

namespace headlab {

namespace {

using json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "tensors are read and written as they lie");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kPrefixBytes = sizeof(uint64_t);
constexpr int kSchemaDepth = 2;  // of the innermost list, {tensor: {shape: [...]}}
const std::string kMetadataKey = "__metadata__";

struct DtypeFacts {
  std::string_view name;
  size_t size;
};
// By Dtype.
constexpr std::array<DtypeFacts, 13> kDtypes{{{"BOOL", 1},
                                              {"U8", 1},
                                              {"I8", 1},
                                              {"I16", 2},
                                              {"U16", 2},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"I32", 4},
                                              {"U32", 4},
                                              {"F32", 4},
                                              {"I64", 8},
                                              {"U64", 8},
                                              {"F64", 8}}};

// Text of a file, in quotes and on one line of a message.
std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 120;
  const std::string shown =
      json(text.substr(0, kLongest)).dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kLongest ? shown + "..." : shown;
}

std::string type_text(Dtype dtype, const std::vector<int64_t>& shape) {
  constexpr size_t kMost = 8;
  const auto end = shape.begin() + std::min(shape.size(), kMost);
  return fmt::format("{} [{}{}]", dtype_name(dtype), fmt::join(shape.begin(), end, ", "),
                     shape.size() > kMost ? ", ..." : "");
}

// Bytes of a tensor; nothing when they do not fit in 63 bits. A length of 0 does not excuse the
// others: the strides of an empty tensor count it as 1.
std::optional<uint64_t> byte_count(Dtype dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = dtype_size(dtype);
  bool empty = false;
  for (const int64_t length : shape) {
    if (length < 0) return std::nullopt;
    const uint64_t factor = std::max<int64_t>(length, 1);
    if (bytes > std::numeric_limits<int64_t>::max() / factor) return std::nullopt;
    bytes *= factor;
    empty = empty || length == 0;
  }
  return empty ? 0 : bytes;
}

// What follows throws DataError without the path, which the constructor of SafetensorsFile adds.

std::string_view header_text(const std::byte* data, uint64_t size) {
  if (size < kPrefixBytes)
    throw DataError(fmt::format("{} bytes are too few for a safetensors file", size));
  uint64_t length = 0;
  std::memcpy(&length, data, kPrefixBytes);
  if (length > kMaxHeaderBytes)
    throw DataError(fmt::format(
        "not a safetensors file: the header is said to have {} bytes, more than the {} allowed",
        length, kMaxHeaderBytes));
  if (length > size - kPrefixBytes)
    throw DataError(fmt::format("the header is said to have {} bytes, the file has {} for it",
                                length, size - kPrefixBytes));
  const std::string_view text(reinterpret_cast<const char*>(data) + kPrefixBytes, length);
  if (!text.starts_with('{')) throw DataError("the header does not start with '{'");
  // The JSON parser takes a zero byte for the end of its input.
  if (text.find('\0') != text.npos) throw DataError("the header holds a zero byte");
  return text;
}

// The header as JSON, refused as soon as a key stands twice or it is deeper than the schema.
json parse_header(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth > kSchemaDepth) throw DataError("the header is nested too deeply");
    }
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw DataError(fmt::format("the header has {} twice", in_quotes(key)));
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    throw DataError(fmt::format("the header is not JSON (byte {} of it)", error.byte));
  } catch (const json::out_of_range&) {
    throw DataError("the header holds a number that no double reaches");
  }
}

std::map<std::string, std::string> read_metadata(const json& stated) {
  if (!stated.is_object()) throw DataError("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : stated.items()) {
    if (!value.is_string()) {
      throw DataError(fmt::format("__metadata__: {} is not a string", in_quotes(key)));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// A tensor as the header states it: its bytes are [begin, end) of the data.
struct Stated {
  TensorEntry entry;
  uint64_t begin = 0, end = 0;
};

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw DataError(fmt::format("tensor {}: {}", in_quotes(name), what));
}

const json& field(const std::string& name, const json& stated, const char* key) {
  const auto found = stated.find(key);
  if (found == stated.end()) refuse(name, fmt::format("{} is missing", key));
  return *found;
}

std::vector<uint64_t> whole_numbers(const std::string& name, const json& stated, const char* key) {
  const json& list = field(name, stated, key);
  const auto is_whole = [](const json& item) { return item.is_number_unsigned(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_whole)) {
    refuse(name, fmt::format("{} is not a list of whole numbers in 64 bits", key));
  }
  return list.get<std::vector<uint64_t>>();
}

Dtype read_dtype(const std::string& name, const json& stated) {
  const json& dtype = field(name, stated, "dtype");
  if (!dtype.is_string()) refuse(name, "dtype is not a string");
  const auto& spelling = dtype.get_ref<const std::string&>();
  const auto found = std::ranges::find(kDtypes, spelling, &DtypeFacts::name);
  if (found == kDtypes.end()) refuse(name, fmt::format("unknown dtype {}", in_quotes(spelling)));
  return static_cast<Dtype>(found - kDtypes.begin());
}

Stated read_stated(const std::string& name, const json& stated) {
  if (!stated.is_object()) refuse(name, "is not an object");
  Stated tensor;
  tensor.entry.name = name;
  tensor.entry.dtype = read_dtype(name, stated);
  const std::vector<uint64_t> shape = whole_numbers(name, stated, "shape");
  const std::vector<uint64_t> offsets = whole_numbers(name, stated, "data_offsets");
  if (stated.size() != 3) refuse(name, "has fields other than dtype, shape and data_offsets");
  if (offsets.size() != 2) {
    refuse(name, fmt::format("data_offsets has {} numbers, not 2", offsets.size()));
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.end < tensor.begin) {
    refuse(name, fmt::format("data_offsets run backwards, {} to {}", tensor.begin, tensor.end));
  }
  // A length over 63 bits turns negative here and is refused with the products that are.
  tensor.entry.shape.assign(shape.begin(), shape.end());
  const std::string type = type_text(tensor.entry.dtype, tensor.entry.shape);
  const std::optional<uint64_t> bytes = byte_count(tensor.entry.dtype, tensor.entry.shape);
  if (!bytes) refuse(name, type + " does not fit in 63 bits");
  if (*bytes != tensor.end - tensor.begin) {
    refuse(name, fmt::format("{} takes {} bytes, data_offsets span {}", type, *bytes,
                             tensor.end - tensor.begin));
  }
  tensor.entry.bytes = *bytes;
  return tensor;
}

// The entries with their place in the data, which they must cover from end to end.
std::vector<TensorEntry> lay_out(std::vector<Stated> tensors, const std::byte* data,
                                 uint64_t size) {
  std::sort(tensors.begin(), tensors.end(), [](const Stated& a, const Stated& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  uint64_t covered = 0;
  for (Stated& tensor : tensors) {
    if (tensor.end > size) {
      refuse(tensor.entry.name,
             fmt::format("ends at byte {} of the data, the file holds {}", tensor.end, size));
    }
    if (tensor.begin != covered) {
      refuse(tensor.entry.name, fmt::format("starts at byte {} of the data, {} are taken before it",
                                            tensor.begin, covered));
    }
    covered = tensor.end;
    tensor.entry.data = data + tensor.begin;
    entries.push_back(std::move(tensor.entry));
  }
  if (covered != size) {
    throw DataError(
        fmt::format("the tensors take {} bytes of data, the file holds {}", covered, size));
  }
  return entries;
}

bool by_name(const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; }

void check_writable(const std::vector<TensorEntry>& sorted) {
  for (size_t i = 0; i < sorted.size(); ++i) {
    const TensorEntry& entry = sorted[i];
    if (entry.name == kMetadataKey || (i > 0 && entry.name == sorted[i - 1].name)) {
      throw std::invalid_argument(fmt::format("tensor name {} is taken", in_quotes(entry.name)));
    }
    if (byte_count(entry.dtype, entry.shape) != entry.bytes) {
      throw std::invalid_argument(fmt::format("tensor {}: {} does not take {} bytes",
                                              in_quotes(entry.name),
                                              type_text(entry.dtype, entry.shape), entry.bytes));
    }
  }
}

std::string json_string(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    throw std::invalid_argument(in_quotes(text) + " is not UTF-8");
  }
}

// Length and JSON of the header; the entries' data are taken to lie in the order given.
std::string header_bytes(const std::vector<const TensorEntry*>& in_data_order,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> strings;
  for (const auto& [key, value] : metadata) {
    strings.push_back(json_string(key) + ":" + json_string(value));
  }
  std::map<std::string, std::string> tensors;
  uint64_t begin = 0;
  for (const TensorEntry* entry : in_data_order) {
    tensors[entry->name] = fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                       json_string(entry->name), dtype_name(entry->dtype),
                                       fmt::join(entry->shape, ","), begin, begin + entry->bytes);
    begin += entry->bytes;
  }
  std::string text = fmt::format(R"({{"{}":{{{}}})", kMetadataKey, fmt::join(strings, ","));
  for (const auto& [name, stated] : tensors) text += "," + stated;
  text += "}";
  text.resize((text.size() + kPrefixBytes - 1) / kPrefixBytes * kPrefixBytes, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw std::invalid_argument(fmt::format("{} tensors need a header of {} bytes, {} are allowed",
                                            tensors.size(), text.size(), kMaxHeaderBytes));
  }
  const uint64_t length = text.size();
  std::string prefix(kPrefixBytes, '\0');
  std::memcpy(prefix.data(), &length, kPrefixBytes);
  return prefix + text;
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes.at(static_cast<size_t>(dtype)).name; }
size_t dtype_size(Dtype dtype) { return kDtypes.at(static_cast<size_t>(dtype)).size; }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : map_(path) {
  made_of(path.string(), [&] { read(map_.data(), map_.size()); });
}

void SafetensorsFile::read(const std::byte* data, size_t size) {
  const std::string_view text = header_text(data, size);
  const json header = parse_header(text);
  std::vector<Stated> tensors;
  for (const auto& [name, stated] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = read_metadata(stated);
    } else {
      tensors.push_back(read_stated(name, stated));
    }
  }
  const size_t before = kPrefixBytes + text.size();
  entries_ = lay_out(std::move(tensors), data + before, size - before);
  std::sort(entries_.begin(), entries_.end(), by_name);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const TensorEntry& entry, std::string_view key) { return entry.name < key; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                       std::map<std::string, std::string> metadata) {
  std::sort(entries.begin(), entries.end(), by_name);
  check_writable(entries);
  metadata.emplace("format", "pt");  // older readers of torch files want it
  std::vector<const TensorEntry*> in_data_order;
  for (const TensorEntry& entry : entries) in_data_order.push_back(&entry);
  // The widest elements first, so that each tensor is aligned for readers that map the file.
  std::stable_sort(in_data_order.begin(), in_data_order.end(),
                   [](const TensorEntry* a, const TensorEntry* b) {
                     return dtype_size(a->dtype) > dtype_size(b->dtype);
                   });
  const std::string header = header_bytes(in_data_order, metadata);
  ReplacementFile file(path);
  file.write(header.data(), header.size());
  for (const TensorEntry* entry : in_data_order) file.write(entry->data, entry->bytes);
  file.commit();
}

}  // namespace headlab
