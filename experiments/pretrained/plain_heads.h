// The weights of a model as those of plain multi-head attention of full width, which is all that
// published layouts know.
#pragma once

#include "experiments/models/model.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

// Parameters and buffers of the model under its own names, each attention layer with q, k, v and o
// of all the heads it was built with: heads that are pruned are rows and columns of zeros, gates
// that no token moves and the `scale` of scores are multiplied in. `options`: of the model.
// ConfigError for heads that are not plain ones, with the command that makes them so.
NamedTensors plain_weights(Model& model, const ModelOptions& options);

}  // namespace headlab
