// A model of a run as Hugging Face's layout has it: config.json and model.safetensors that
// transformers opens with the class of its task.
#pragma once

#include <functional>

#include "experiments/pretrained/hugging_face.h"

namespace headlab {

struct ExportedModel {
  std::string model_type, architecture;
  double difference = 0;  // most by which its states and logits, read back, differ from the model's
};

// Writes the model, float32, to `folder`: whole or not at all. What is written is read back and run
// on a small made example beside the model. `ends`: ids that end a text. `add_files`: puts more
// there before it takes its place. ConfigError for what the layout has no place for, and for a
// folder that is not empty; RunError where the storage refuses.
ExportedModel export_model(Model& model, const KindBlock& options, const DataShape& data,
                           const std::vector<int64_t>& ends, const std::filesystem::path& folder,
                           const std::function<void(const std::filesystem::path&)>& add_files);

}  // namespace headlab
