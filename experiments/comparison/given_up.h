// Trainings that choose a learning rate and are so far behind that their ends need not be seen.
#pragma once

#include <string>
#include <vector>

#include "experiments/comparison/comparison_stages.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

// Why a training with these evaluations, of `steps` in all, is clearly behind: at half of its steps
// its loss is above the one that `best`, another rate of the same arm and seed, had at a quarter,
// by more than 5 % of what that one had lost until then. "": it is not, is not so far, or has less
// than a quarter of its steps left.
std::string why_behind(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& best,
                       int64_t steps);

// The reason to give a training of the stage up, by the runs that lie there; "": train it. Only
// what Stage::may_be_given_up names is.
std::string why_given_up(const Stage& stage, size_t point);

}  // namespace headlab
