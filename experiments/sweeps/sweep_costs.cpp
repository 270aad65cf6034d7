#include "experiments/sweeps/sweep_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/errors.h"
#include "experiments/data/source.h"
#include "experiments/files/replacement_file.h"
#include "experiments/runs/run_data.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/output.h"
#include "experiments/system/scratch_folder.h"
#include "experiments/text/file_text.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kMeasuredSeconds = 3;

// What a command says; ConfigError with it where it fails otherwise than by being cut short.
std::string said_by_command(const std::vector<std::string>& words, const fs::path& output,
                            const SweepOrders& orders, const std::string& label) {
  const int code = SpawnedProgram(words, output, orders.environment).wait();
  auto said = file_text(output);
  if (code != kDone && code != kResumable)
    throw ConfigError(fmt::format("{}: cannot be trained: {}", label, said));
  return said;
}

Json object_in(const std::string& said) {
  std::istringstream in(said);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with('{')) return Json::parse(line);
  throw ConfigError("validate printed no sizes: " + said);
}

// Seconds and tokens of an update, with what is logged and evaluated between them.
void measure(const fs::path& folder, const SweepOrders& orders, double flops_per_token,
             ConfigCost& cost) {
  const auto config = folder / "point.yaml", out = folder / "runs";
  const auto said =
      said_by_command({"run", config.string(), fmt::format("train.max_time={}", kMeasuredSeconds),
                       "--out", out.string(), "--device", orders.device, "--json"},
                      folder / "run.txt", orders, cost.label);
  const auto run = fs::path(object_in(said)["run"].get<std::string>());
  const auto state = Json::parse(file_text(run / "ckpt" / "last" / "state.json"));
  const auto& trainer = state.contains("trainer") ? state["trainer"] : state;
  const auto steps = state["step"].get<double>();
  const auto updates = static_cast<double>(cost.steps);
  cost.seconds = trainer["wall_s"].get<double>() / steps * updates;
  cost.flops =
      kPassesOfUpdate * flops_per_token * trainer["tokens"].get<double>() / steps * updates;
}

ConfigCost cost_of(const FrozenPoint& point, const SweepOrders& orders) {
  ConfigCost cost{.label = point.label()};
  const ScratchFolder folder;
  const auto config = folder.path() / "point.yaml";
  replace_file(config, point.yaml);
  cost.steps = point.experiment.train.total_steps(*open_training_data(point.experiment));
  const auto sizes = object_in(said_by_command({"validate", config.string(), "--json"},
                                               folder.path() / "validate.txt", orders, cost.label));
  cost.parameters = sizes["parameters"].get<int64_t>();
  for (const char* part : {"attention_bytes", "statistics_bytes", "checkpoint_bytes"})
    cost.bytes += sizes[part].get<double>();
  const auto& flops = sizes["flops_per_token"];
  measure(folder.path(), orders,
          flops.is_null() ? std::numeric_limits<double>::quiet_NaN() : flops.get<double>(), cost);
  return cost;
}

// What it is but for the seed.
std::string config_key(const FrozenPoint& point) {
  return point.experiment.name + "/" + point.hash;
}

bool is_finished(const FrozenPoint& point) {
  const auto status = read_status(point.run);
  return status && status->state == RunState::kFinished;
}

}  // namespace

std::vector<ConfigCost> costs_of(const FrozenSweep& sweep, const SweepOrders& orders) {
  std::vector<std::string> keys;
  std::vector<ConfigCost> costs;
  for (const auto& point : sweep.points) {
    const auto key = config_key(point);
    const auto known = std::find(keys.begin(), keys.end(), key);
    const auto at = static_cast<size_t>(known - keys.begin());
    if (known == keys.end()) {
      tell("measures {}", point.label());
      keys.push_back(key);
      costs.push_back(cost_of(point, orders));
    }
    ++costs[at].points;
    if (is_finished(point)) ++costs[at].finished;
  }
  return costs;
}

}  // namespace headlab
