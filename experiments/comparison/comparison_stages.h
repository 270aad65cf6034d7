// The two stages of a comparison, each a sweep: trainings that choose every arm's learning rate,
// and those that are compared.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/comparison/comparison.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/sweeps/sweep_points.h"
#include "experiments/sweeps/sweep_run.h"
#include "experiments/sweeps/sweep_summary.h"

namespace headlab {

struct Training {
  size_t task = 0, arm = 0;
  double rate = 0;
  int64_t seed = 0;
  double length = 1;                                  // share of the steps; the schedule ends there
  auto operator<=>(const Training&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Stage {
  FrozenSweep sweep;
  bool whole = true;  // else the one that chooses rates
  // Trainings with one config are one point, whatever their arms are called.
  std::map<Training, size_t> points;
  // Points that choose rates and may end early, with the steps of each: of the first choosing seed
  // alone, by which a search widens, so that the others decide by whole trainings; and of no task
  // that is solved or not, whose loss falls late and at once.
  std::map<size_t, int64_t> may_be_given_up;
};

// How a stage ended, or stands.
struct StageEnd {
  SweepSummary summary;
  int code = 0;  // of exit

  const SweepRow& row(const Stage& stage, const Training& training) const {
    return summary.rows.at(stage.points.at(training));
  }
};

// These trainings, each config once; of one stage as before, the first points are the same.
Stage stage_of(const Comparison& comparison, const std::vector<Training>& trainings, bool whole);
// A stage as it lies there, with nothing trained for it. Its code tells whether it is finished.
StageEnd as_it_stands(const Stage& stage);
// Writes the stage's files, trains its points, shows them on stderr, and writes its summary. What
// chooses rates is given up where it is behind.
StageEnd run_stage(const Stage& stage, const SweepOrders& orders);

// Why a training with these evaluations, of `steps` in all, is clearly behind: at half of its steps
// its loss is above the one that `best`, another rate of the same arm and seed, had at a quarter,
// by more than 5 % of what that one had lost until then. "": it is not, is not so far, or has less
// than a quarter of its steps left.
std::string why_behind(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& best,
                       int64_t steps);

}  // namespace headlab
