// Models as others publish them: Hugging Face's layout, config.json and model.safetensors (or its
// shards) of GPT-2, LLaMA and its relatives, BERT, ViT and Marian, as transformers 4.57 and 5.23
// write them; and LLaMA in GGUF files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "experiments/models/model.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

// A tensor of theirs, which holds parameters or buffers of ours, one behind the other: all numbers
// in order, of the transposed matrix where `transposed`.
struct ForeignTensor {
  std::string name;
  std::vector<std::string> ours;
  bool transposed = false;
  std::vector<int64_t> shape = {};  // theirs
};

struct HuggingFaceModel {
  std::string kind;   // "decoder", "encoder", "vit", "seq2seq"
  KindBlock options;  // of the model, as a config would say them
  DataShape shape;
  std::shared_ptr<Model> model;  // on the CPU
  std::vector<ForeignTensor> tensors;
  std::vector<int64_t> ends = {};                 // ids that end a text
  std::vector<std::filesystem::path> files = {};  // settings and weights, absolute
  std::vector<std::string> notices = {};  // sentences on what of the files has no place here

  // Parameters of the model, or as many gradients, under their names and in their shapes.
  NamedTensors named_as_theirs(const NamedTensors& ours) const;
};

// Builds the model of a folder or of a .gguf file, with its weights in `type`; of the files no more
// is in memory at a time than a piece of one tensor. Names what is wrong: file, and key or tensors,
// these all at once. DataError for what is missing or does not fit, ConfigError for what no model
// here can do.
HuggingFaceModel read_hugging_face(const std::filesystem::path& path, at::ScalarType type);

}  // namespace headlab
