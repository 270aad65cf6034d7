// Models made of their settings, and models that come back from the tensors they saved.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/restore_heads.h"
#include "experiments/models/model.h"

namespace headlab {

// The model of the settings `model`, for these data, its parameters in `type`, on the CPU.
// ConfigError with the place where the two do not fit together.
std::shared_ptr<Model> make_model(const KindBlock& model, const DataShape& data,
                                  at::ScalarType type);

// Puts a checkpoint's tensors into a model built from the same config; layers that the checkpoint
// holds sliced are sliced first. RunError lists everything that does not fit.
void load_model(Model& model, const NamedTensors& tensors);

// Layers that were saved sliced: module path of the layer -> original indices of its heads.
std::map<std::string, std::vector<int64_t>> sliced_layers(const NamedTensors& tensors);

}  // namespace headlab
