// How long forward passes of two models take, and whether they differ by more than noise.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/attention/attend.h"
#include "experiments/models/model.h"

namespace headlab {

// Passes of both models by turns, in seconds; those of one pair stand beside each other in time.
struct Speeds {
  std::vector<double> masked, sliced;
};

// `repeats` pairs of what these two measure. The order within a pair changes from one to the next,
// so that neither always finds what the other has left behind.
Speeds time_by_turns(const std::function<double()>& masked, const std::function<double()>& sliced,
                     int64_t repeats);
// Forward passes over `batch` in eval mode, after one of each that does not count.
Speeds compare_speed(Model& masked, Model& sliced, const Batch& batch, int64_t repeats,
                     Backend backend = Backend::kAuto);

// What slicing saves of the time of a pass.
struct TimeSaved {
  double masked = 0, sliced = 0;  // medians, seconds
  double share = 0;               // median over pairs of 1 - sliced / masked
  double low = 0, high = 0;       // its quartiles: the middle half of the pairs lies between them
  int64_t pairs = 0;

  // Three quarters of the pairs say the same of which is faster.
  bool beyond_noise() const { return low > 0 || high < 0; }
};
TimeSaved time_saved(const Speeds& speeds);  // of at least one pair

}  // namespace headlab
