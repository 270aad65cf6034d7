// What the tensors of a model are called, and how they are shaped, in the layout that Hugging
// Face's files have for such a model.
#pragma once

#include "experiments/pretrained/hugging_face_families.h"

namespace headlab {

// The model_type whose layout has places for it: "gpt2" or "llama" of a decoder, "bert", "vit",
// "marian". `kind`: of the model.
std::string published_type(const std::string& kind, const ModelOptions& options);

// Parameters and buffers of ours in that layout, as far as it has names for them.
std::vector<ForeignTensor> published_tensors(const std::string& kind, const ModelOptions& options,
                                             const DataShape& data, const NamedTensors& ours);

NamedTensors parameters_and_buffers(const Model& model);

}  // namespace headlab
