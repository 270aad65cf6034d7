#include "experiments/comparison/equal_terms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "core/head_kinds.h"
#include "experiments/models/stack_options.h"
#include "experiments/runs/run_identity.h"

namespace headlab {

std::string unequal_terms(const TaskArm& arm, const TaskArm& baseline) {
  const auto &own = arm.experiment.train, &other = baseline.experiment.train;
  std::vector<std::string> differ;
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) differ.emplace_back(what);
  };
  // By the contents of the files: another path to the same data is no difference.
  const auto mine = identity_of(arm.experiment), others = identity_of(baseline.experiment);
  for (const char* key : {"data", "init"}) {
    const auto *a = mine.find(key), *b = others.find(key);
    compare(key, a ? to_flow(*a) : "", b ? to_flow(*b) : "");
  }
  compare("train.steps", arm.steps, baseline.steps);
  compare("train.batch", own.batch, other.batch);
  compare("train.accumulate", own.accumulate, other.accumulate);
  compare("train.label_smoothing", own.label_smoothing, other.label_smoothing);
  compare("train.max_positions", own.max_positions, other.max_positions);
  compare("train.eval_batches", own.eval_batches, other.eval_batches);
  compare("train.eval_batch", own.eval_batch, other.eval_batch);
  return fmt::format("{}", fmt::join(differ, ", "));
}

std::vector<std::string> kinds_without_host(const TaskArm& arm) {
  std::set<std::string> kinds;
  for (const auto& stack : arm.experiment.model.as<ModelOptions>().stacks())
    for (int64_t layer = 0; layer < stack->layers; ++layer) {
      const auto& block = stack->attention_of(layer);
      if (!block.as<HeadOptions>().init_differences()) kinds.insert(block.kind());
    }
  return {kinds.begin(), kinds.end()};
}

}  // namespace headlab
