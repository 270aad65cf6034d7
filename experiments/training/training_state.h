// What training carries from update to update beside weights and moments.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "experiments/runs/checkpoint.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

struct TrainingState {
  int64_t step = 0, tokens = 0;                           // of finished updates
  double wall_s = 0;                                      // seconds of training, of all sessions
  double best = std::numeric_limits<double>::infinity();  // validation loss
  int64_t since_best = 0;                                 // evaluations
  bool unmeasured = false;  // all updates are done, and the whole split is still to be measured
  Metrics newest = {};      // numbers so far, for status.json

  nlohmann::json json() const;  // Checkpoint::trainer; the step stands beside it
  static TrainingState of(const Checkpoint& checkpoint);
};

}  // namespace headlab
