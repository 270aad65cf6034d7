// GGUF files, version 3, as llama.cpp writes them: settings, and tensors whose numbers may be kept
// in four or eight bits. A strict reader over a memory map. No torch in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "experiments/files/mapped_file.h"

namespace headlab {

// An array of numbers, where it lies in the file.
struct GgufNumbers {
  uint32_t type = 0;
  std::string_view bytes;

  size_t size() const;
  double operator[](size_t i) const;
};

// Arrays are of texts or of numbers, all others are not known. Texts point into the file.
using GgufValue = std::variant<bool, int64_t, double, std::string_view,
                               std::vector<std::string_view>, GgufNumbers>;

// Of a number or a truth; none of a text or a list.
std::optional<double> number_in(const GgufValue& value);

enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape = {};  // row-major: the file's dimensions the other way round
  int64_t numbers = 0;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

class GgufFile {
 public:
  // Throws DataError `path: what is wrong` unless what the file says of itself fits into it.
  explicit GgufFile(const std::filesystem::path& path);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }

  // Numbers begin .. begin + count of a tensor as they are meant; in quantised ones both count
  // whole blocks (kGgufBlock), or end with the tensor.
  static void numbers(const GgufTensor& tensor, int64_t begin, int64_t count, float* to);
  void forget(const GgufTensor& tensor) const { map_.forget(tensor.data, tensor.bytes); }

 private:
  MappedFile map_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

inline constexpr int64_t kGgufBlock = 32;  // numbers that share a scale

}  // namespace headlab
