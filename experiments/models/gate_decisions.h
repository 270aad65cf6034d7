// What the learned gates of a whole model have decided so far.
#pragma once

#include <optional>

#include "experiments/models/model.h"

namespace headlab {

// Of all alive heads that have a gate.
struct GateDecisions {
  int64_t heads = 0;
  int64_t undecided = 0;  // gate without noise between 0 and 1
  int64_t alive = 0;      // test gate above 0
  double expected = 0;    // sum of p_open
};
// None where no layer has such gates. Waits for the model's device.
std::optional<GateDecisions> gate_decisions(Model& model);

}  // namespace headlab
