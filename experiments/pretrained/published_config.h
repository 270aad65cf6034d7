// config.json of a model: what its settings are called by transformers (4.57 and 5.23).
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/models/model.h"

namespace headlab {

struct PublishedConfig {
  std::string model_type;  // "gpt2", "llama", "mistral", "qwen2", "qwen3", "bert", "vit", "marian"
  nlohmann::ordered_json json;
};

// `tied`: the output head is the embedding. `ends`: ids that end a text. ConfigError naming the
// first setting for which no class of transformers has a place, and what would have one.
PublishedConfig published_config(const KindBlock& model, const DataShape& data, bool tied,
                                 const std::vector<int64_t>& ends);

}  // namespace headlab
