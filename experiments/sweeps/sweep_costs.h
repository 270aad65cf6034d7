// What a sweep would cost, from a short measured start of each of its configs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/sweeps/sweep_points.h"
#include "experiments/sweeps/sweep_run.h"

namespace headlab {

// Forward passes that an update costs as much as: a backward one costs two.
inline constexpr double kPassesOfUpdate = 3;

// Points with one config but for the seed cost the same: one of them is measured.
struct ConfigCost {
  std::string label;                 // of the first of them
  int64_t points = 0, finished = 0;  // finished: these are trained already
  int64_t steps = 0, parameters = 0;
  double flops = 0, bytes = 0, seconds = 0;  // of one training; flops NaN: a kind does not say
};

// Trains each config for some seconds in a folder of its own, which goes again; nothing of the
// sweep is written. ConfigError with what a training says that cannot begin.
std::vector<ConfigCost> costs_of(const FrozenSweep& sweep, const SweepOrders& orders);

}  // namespace headlab
