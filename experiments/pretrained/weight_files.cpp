#include "experiments/pretrained/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/config/config.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/scalar_type.h"
#include "experiments/files/json_text.h"
#include "experiments/files/safetensors.h"

namespace headlab {
namespace {

using at::Tensor;
namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{1} << 20;  // numbers
static_assert(kPiece % kGgufBlock == 0);

class SafetensorsWeights : public WeightFiles {
 public:
  SafetensorsWeights(const fs::path& folder, const std::vector<std::string>& files)
      : WeightFiles((folder / files.front()).string()) {
    for (const auto& file : files) {
      const auto& shard = *shards_.emplace_back(std::make_unique<SafetensorsFile>(folder / file));
      files_.push_back(fs::canonical(folder / file));
      aliases_.insert(shard.metadata().begin(), shard.metadata().end());  // "format" is one of none
      for (const auto& entry : shard.entries()) {
        lies_in[entry.name] = file;
        if (!entries_.emplace(entry.name, std::pair{&shard, &entry}).second)
          throw DataError(
              fmt::format("{}: {} is in another shard, too", (folder / file).string(), entry.name));
        shapes_[entry.name] = entry.shape;
      }
    }
  }

  std::map<std::string, std::string> lies_in;  // tensor -> file

  void forget(const std::string& tensor) const override {
    const auto& [shard, entry] = entries_.at(tensor);
    shard->forget(*entry);
  }

 private:
  Tensor piece(const std::string& tensor, int64_t begin, int64_t count) const override {
    const auto& entry = *entries_.at(tensor).second;
    const auto type = scalar_type_of(entry.dtype);
    if (!at::isFloatingType(type))
      refuse(fmt::format("{} is {}; weights are F16, BF16, F32 or F64", tensor,
                         dtype_name(entry.dtype)));
    auto numbers = at::empty({count}, type);  // copied: what is mapped need not be aligned
    const auto size = dtype_size(entry.dtype);
    std::memcpy(numbers.mutable_data_ptr(), entry.data + static_cast<size_t>(begin) * size,
                static_cast<size_t>(count) * size);
    return numbers;
  }

  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, std::pair<const SafetensorsFile*, const TensorEntry*>> entries_;
};

class GgufWeights : public WeightFiles {
 public:
  GgufWeights(std::shared_ptr<const GgufFile> file, const std::string& name,
              const std::function<std::string(const std::string&)>& renamed)
      : WeightFiles(name), file_(std::move(file)) {
    files_.push_back(fs::canonical(name));
    for (const auto& [own, tensor] : file_->tensors()) {
      const auto here = renamed(own);
      if (!tensors_.emplace(here, &tensor).second) refuse(here + " is there twice");
      shapes_[here] = tensor.shape;
    }
  }

  void forget(const std::string& tensor) const override { file_->forget(*tensors_.at(tensor)); }

 private:
  Tensor piece(const std::string& tensor, int64_t begin, int64_t count) const override {
    const auto blocks = (count + kGgufBlock - 1) / kGgufBlock * kGgufBlock;
    auto numbers = at::empty({blocks}, at::kFloat);
    const auto& read = *tensors_.at(tensor);
    GgufFile::numbers(read, begin, std::min(blocks, read.numbers - begin),
                      numbers.mutable_data_ptr<float>());
    return numbers.narrow(0, 0, count);
  }

  std::shared_ptr<const GgufFile> file_;
  std::map<std::string, const GgufTensor*> tensors_;
};

// The shards that an index names, each once; `expected`: what it says lies in which.
std::vector<std::string> read_index(const fs::path& path,
                                    std::map<std::string, std::string>* expected) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}: {}", path.string(), what));
  };
  try {
    *expected = parse_json(MappedFile(path).text())
                    .value_or(nlohmann::json::object())
                    .at("weight_map")
                    .get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& error) {
    refuse(fmt::format("is no index of shards: {}", error.what()));
  }
  std::vector<std::string> shards;
  for (const auto& [tensor, shard] : *expected) {
    if (fs::path(shard).filename() != shard || shard == "..")
      refuse(fmt::format("{} lies in '{}', which is no file beside it", tensor, shard));
    if (std::find(shards.begin(), shards.end(), shard) == shards.end()) shards.push_back(shard);
  }
  if (shards.empty()) refuse("names no tensor");
  return shards;
}

}  // namespace

void WeightFiles::refuse(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", name_, what));
}

int64_t WeightFiles::numbers() const {
  int64_t all = 0;
  for (const auto& [name, shape] : shapes_) all += c10::multiply_integers(shape);
  return all;
}

void WeightFiles::read(const std::string& tensor, int64_t begin, const Tensor& to) const {
  TORCH_CHECK(to.is_contiguous(), "what is read into must be contiguous");
  auto row = to.view({-1});
  // Pieces begin where blocks do: what lies before `begin` in its block is read and left out.
  for (int64_t done = 0; done < row.numel();) {
    const int64_t from = (begin + done) / kGgufBlock * kGgufBlock, skipped = begin + done - from;
    const int64_t n = std::min(kPiece - skipped, row.numel() - done);
    row.narrow(0, done, n).copy_(piece(tensor, from, skipped + n).narrow(0, skipped, n));
    done += n;
  }
}

std::shared_ptr<const WeightFiles> open_weights(const fs::path& folder) {
  if (fs::exists(folder / "model.safetensors"))
    return std::make_shared<SafetensorsWeights>(folder,
                                                std::vector{std::string("model.safetensors")});
  const auto index = folder / "model.safetensors.index.json";
  if (!fs::exists(index)) {
    if (fs::exists(folder / "pytorch_model.bin"))
      throw ConfigError(fmt::format(
          "{}: there is no model.safetensors, and pytorch_model.bin runs code where it is opened; "
          "in that folder: python -c \"import torch; from safetensors.torch import save_file; "
          "save_file({{k: v.clone() for k, v in torch.load('pytorch_model.bin', "
          "weights_only=True).items()}}, 'model.safetensors')\"",
          folder.string()));
    throw DataError(
        fmt::format("{}: there is neither model.safetensors nor model.safetensors.index.json",
                    folder.string()));
  }
  std::map<std::string, std::string> expected;
  const auto shards = read_index(index, &expected);
  auto weights = std::make_shared<SafetensorsWeights>(folder, shards);
  std::string missing;
  for (const auto& [tensor, shard] : expected)
    if (const auto found = weights->lies_in.find(tensor);
        found == weights->lies_in.end() || found->second != shard)
      missing += fmt::format("; {} has no {}", shard, tensor);
  for (const auto& [tensor, shape] : weights->shapes())
    if (!expected.contains(tensor)) missing += fmt::format("; {} is in no shard by it", tensor);
  if (!missing.empty())
    throw DataError(fmt::format("{}: does not fit its shards{}", index.string(), missing));
  return weights;
}

std::shared_ptr<const WeightFiles> gguf_weights(
    std::shared_ptr<const GgufFile> file, const std::string& name,
    const std::function<std::string(const std::string&)>& renamed) {
  return std::make_shared<GgufWeights>(std::move(file), name, renamed);
}

}  // namespace headlab
