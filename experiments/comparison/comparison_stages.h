// The two stages of a comparison, each a sweep: short trainings that choose every arm's learning
// rate, and the whole ones that are compared.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/comparison/comparison.h"
#include "experiments/runs/sweep_costs.h"
#include "experiments/runs/sweep_points.h"
#include "experiments/runs/sweep_run.h"
#include "experiments/runs/sweep_summary.h"

namespace headlab {

struct Training {
  size_t task = 0, arm = 0;
  double rate = 0;
  int64_t seed = 0;
  auto operator<=>(const Training&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Stage {
  FrozenSweep sweep;
  bool whole = true;  // else the one that chooses rates
  // Trainings with one config are one point, whatever their arms are called.
  std::map<Training, size_t> points;
};

// How a stage ended, or stands.
struct StageEnd {
  SweepSummary summary;
  int code = 0;  // of exit

  const SweepRow& row(const Stage& stage, const Training& training) const {
    return summary.rows.at(stage.points.at(training));
  }
};

// The learning rate of an arm on a task.
struct ChosenRate {
  std::optional<double> rate;  // none: what follows says why
  std::string failure;
  bool at_edge = false;  // of a grid of several: a better one may lie outside
  struct Tried {
    double rate = 0;
    std::optional<double> loss;  // mean over choose_seeds; none: it diverged
  };
  std::vector<Tried> tried = {};  // none: there was one rate
};
using ChosenRates = std::vector<std::vector<ChosenRate>>;  // by task, then arm

// A share of the steps, with warmup and decay that are as much shorter: every task that has
// several rates, every arm that takes part in it.
Stage choosing_stage(const Comparison& comparison);
// Of every arm: the rate with the lowest final validation loss. A rate at which a training
// diverges, or whose loss is not finite, loses; of any other failure the arm has no rate.
ChosenRates chosen_rates(const Comparison& comparison, const Stage& choosing, const StageEnd& end);
// Whole trainings with every seed, of the arms that have a rate.
Stage final_stage(const Comparison& comparison, const ChosenRates& rates);

// A stage as it lies there, with nothing trained for it. Its code tells whether it is finished.
StageEnd as_it_stands(const Stage& stage);
// Writes the stage's files, trains its points, shows them on stderr, and writes its summary.
StageEnd run_stage(const Stage& stage, const SweepOrders& orders);

// The whole trainings, with the first rate where an arm's is not chosen yet.
Stage likely_final_stage(const Comparison& comparison);
// What both stages cost; of rates that are not yet chosen the first stands for all.
std::vector<ConfigCost> costs_of(const Comparison& comparison, const SweepOrders& orders);

}  // namespace headlab
