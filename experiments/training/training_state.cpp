#include "experiments/training/training_state.h"

#include <cmath>

namespace headlab {

nlohmann::json TrainingState::json() const {
  nlohmann::json object{{"tokens", tokens}, {"wall_s", wall_s}, {"since_best", since_best}};
  if (std::isfinite(best)) object["best"] = best;
  if (unmeasured) object["unmeasured"] = true;
  for (const auto& [name, value] : newest) object["metrics"][name] = metric_json(value);
  return object;
}

TrainingState TrainingState::of(const Checkpoint& checkpoint) {
  const auto& json = checkpoint.trainer;
  TrainingState state;
  state.step = checkpoint.step;
  state.tokens = json.value("tokens", int64_t{0});
  state.wall_s = json.value("wall_s", 0.0);
  state.since_best = json.value("since_best", int64_t{0});
  state.unmeasured = json.value("unmeasured", false);
  state.best = json.value("best", std::numeric_limits<double>::infinity());
  const auto metrics = json.value("metrics", nlohmann::json::object());  // none in older ones
  for (const auto& [name, value] : metrics.items()) state.newest[name] = metric_value(value);
  return state;
}

}  // namespace headlab
