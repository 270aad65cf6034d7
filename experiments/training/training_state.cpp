#include "experiments/training/training_state.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/runs/checkpoint_state.h"

namespace headlab {
namespace {

RunError refusal_of(int64_t step, const std::string& what) {
  return RunError(
      fmt::format("the checkpoint of step {}: what the trainer left in {} is damaged: {}; without "
                  "this checkpoint the run goes on from the one before",
                  step, kStateFile, what));
}

int64_t whole_number_in(const nlohmann::json& json, const char* key) {
  return json.contains(key) ? whole_number(json[key]) : 0;
}

}  // namespace

nlohmann::json TrainingState::json() const {
  nlohmann::json object{{"tokens", tokens}, {"wall_s", wall_s}, {"since_best", since_best}};
  if (std::isfinite(best)) object["best"] = best;
  if (unmeasured) object["unmeasured"] = true;
  for (const auto& [name, value] : newest) object["metrics"][name] = metric_json(value);
  return object;
}

TrainingState TrainingState::of(const Checkpoint& checkpoint) try {
  const auto& json = checkpoint.trainer;
  TrainingState state;
  state.step = checkpoint.step;
  state.tokens = whole_number_in(json, "tokens");
  state.wall_s = json.value("wall_s", 0.0);
  state.since_best = whole_number_in(json, "since_best");
  state.unmeasured = json.value("unmeasured", false);
  state.best = json.value("best", std::numeric_limits<double>::infinity());
  const auto metrics = json.value("metrics", nlohmann::json::object());  // none in older ones
  for (const auto& [name, value] : metrics.items()) state.newest[name] = metric_value(value);
  return state;
} catch (const std::logic_error& error) {  // metric_value's
  throw refusal_of(checkpoint.step, error.what());
} catch (const nlohmann::json::exception& error) {
  throw refusal_of(checkpoint.step, error.what());
}

}  // namespace headlab
