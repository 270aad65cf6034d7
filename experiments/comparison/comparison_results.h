// What a comparison found: every arm of every task with its trainings, against the baseline.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/comparison/curves.h"
#include "experiments/comparison/head_columns.h"
#include "experiments/comparison/rate_choice.h"
#include "experiments/comparison/settled.h"
#include "experiments/comparison/solved.h"
#include "experiments/comparison/surviving_heads.h"
#include "experiments/data/references.h"
#include "experiments/measuring/differences.h"

namespace headlab {

// Of a task; each is a family of its own.
const std::vector<FinalMetric>& compared_metrics(const Comparison& comparison, size_t task);
// None: a task whose seeds do not lie in two humps.
std::optional<SolvedRule> solved_rule(const Comparison& comparison, size_t task);
// How many arms have a place on the task, beside the baseline: what Holm corrects for.
size_t family_size(const Comparison& comparison, size_t task);

struct ComparedArm {
  std::vector<SweepRow> rows;        // a seed each; none where nothing was to be trained
  std::string missing;               // why it has no statistics; "": it has
  std::vector<std::string> notices;  // what a reader of its row must know
  std::string code;                  // digests of the code of its trainings
  std::map<std::string, ComparedMetric> metrics;  // by name; none where `missing`
  std::optional<SolvedArm> solved;                // of tasks with a solved_rule()
  struct Length {
    std::vector<double> losses;  // by seed
    std::vector<SweepRow> rows;
  };
  std::map<double, Length> at_lengths;  // by shares of the steps
  Curve curve;                          // means
  std::optional<double> wall_s, flops;  // of a training, means
  Reach reach;                          // compute that the baseline takes to this arm's loss
  std::optional<double> equal_time;     // mean loss when the baseline's trainings ended
  HeadColumns heads;                    // means over the seeds
  std::optional<double> surviving;      // heads, mean over the seeds
  int64_t built_heads = 0;              // where `surviving` is known
  std::optional<bool> above_chance;     // none: not known

  // That compute over the arm's own, by reach.bound; none where one of them is not known.
  std::optional<double> speedup() const {
    if (reach.bound == Reach::kNone || std::isnan(reach.flops) || !flops) return std::nullopt;
    return reach.flops / *flops;
  }
};

struct ComparedTask {
  std::vector<ComparedArm> arms;
  Metrics measured_on;         // of a final evaluation: tokens, examples, whole_split
  References references = {};  // of the same examples
  std::vector<std::string> notices;
  std::optional<Settled> settled;  // none: `unsettled`
  std::string unsettled = {};      // a sentence: why that is not known
};

// Of the pruned heads of a run; none where that is not asked for.
using Survivors = std::function<std::optional<SurvivingHeads>(const std::filesystem::path& run)>;

std::vector<ComparedTask> compare_arms(const Comparison& comparison, const ChosenRates& rates,
                                       const Stage& whole, const StageEnd& end,
                                       const Survivors& survivors);

}  // namespace headlab
