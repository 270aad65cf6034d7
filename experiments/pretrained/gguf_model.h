// LLaMA in a GGUF file, as if it lay in Hugging Face's layout.
#pragma once

#include "experiments/pretrained/hugging_face_settings.h"
#include "experiments/pretrained/weight_files.h"

namespace headlab {

struct PublishedFiles {
  HuggingFaceSettings settings;
  std::shared_ptr<const WeightFiles> weights;
  // Rows of q and k lie so that features 2i and 2i + 1 of a head of this width rotate together.
  std::optional<int64_t> interleaved_head_dim = {};
};

// Settings and tensors under transformers' names. DataError for what is missing or damaged,
// ConfigError for what no model here can do.
PublishedFiles open_gguf(const std::filesystem::path& path);

}  // namespace headlab
