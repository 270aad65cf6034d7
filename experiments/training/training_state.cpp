#include "experiments/training/training_state.h"

#include <cmath>

namespace headlab {

nlohmann::json TrainingState::json() const {
  nlohmann::json object{{"tokens", tokens}, {"wall_s", wall_s}, {"since_best", since_best}};
  if (std::isfinite(best)) object["best"] = best;
  return object;
}

TrainingState TrainingState::of(const Checkpoint& checkpoint) {
  const auto& json = checkpoint.trainer;
  TrainingState state;
  state.step = checkpoint.step;
  state.tokens = json.value("tokens", int64_t{0});
  state.wall_s = json.value("wall_s", 0.0);
  state.since_best = json.value("since_best", int64_t{0});
  state.best = json.value("best", std::numeric_limits<double>::infinity());
  return state;
}

}  // namespace headlab
