// Trainings that choose a learning rate and are so far behind that their ends need not be seen.
#pragma once

#include <string>
#include <vector>

#include "experiments/comparison/comparison_stages.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

// Why a training with these evaluations, of `steps` in all, is behind for good: at half of its
// steps its loss is above the one that `best`, another rate of the same arm and seed, had at a
// quarter. "": it is not, or is not so far.
std::string why_behind(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& best,
                       int64_t steps);

// Why a training of the stage need not go on, by the runs that lie there; "": it is to. Of the
// compared ones all go on.
std::string why_given_up(const Stage& stage, size_t point);

}  // namespace headlab
