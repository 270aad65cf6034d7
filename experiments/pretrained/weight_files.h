// The weights of a published model where they lie: files are mapped and read piece by piece, so
// that no more of them is in memory than what is being copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "experiments/files/gguf.h"

namespace headlab {

class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  // DataError naming the file.
  [[noreturn]] void refuse(const std::string& what) const;
  const std::map<std::string, std::vector<int64_t>>& shapes() const { return shapes_; }
  bool contains(const std::string& tensor) const { return shapes_.contains(tensor); }
  int64_t numbers() const;  // in all tensors
  const std::vector<std::filesystem::path>& files() const { return files_; }
  // Names that a file does not hold, since they were one tensor with another when it was written
  // (safetensors.torch.save_model says so in the metadata): name -> the one that it holds.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // Numbers of a tensor from `begin` on, row by row, into all of `to` (contiguous, on the CPU,
  // floating), in its type. DataError for a tensor of integers.
  void read(const std::string& tensor, int64_t begin, const at::Tensor& to) const;
  // Frees the memory that reading a tensor took.
  virtual void forget(const std::string& tensor) const = 0;

 protected:
  explicit WeightFiles(std::string name) : name_(std::move(name)) {}
  // Of at most kPiece numbers, on whole blocks of what is quantised.
  virtual at::Tensor piece(const std::string& tensor, int64_t begin, int64_t count) const = 0;

  std::string name_;  // for messages
  std::vector<std::filesystem::path> files_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, std::string> aliases_;
};

// model.safetensors of a folder, or the shards that model.safetensors.index.json names. DataError
// where they are missing, damaged, or do not hold what the index says.
std::shared_ptr<const WeightFiles> open_weights(const std::filesystem::path& folder);
// Tensors of a GGUF file, each renamed. DataError where two are then called alike.
std::shared_ptr<const WeightFiles> gguf_weights(
    std::shared_ptr<const GgufFile> file, const std::string& name,
    const std::function<std::string(const std::string&)>& renamed);

}  // namespace headlab
