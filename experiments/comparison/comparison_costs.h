// What a comparison costs, told before it begins.
#pragma once

#include <vector>

#include "experiments/comparison/comparison_stages.h"
#include "experiments/sweeps/sweep_costs.h"

namespace headlab {

// The compared trainings, with the first rate where an arm's is not chosen yet.
Stage likely_final_stage(const Comparison& comparison);
// What both stages cost, from a short start of each arm; of rates that are not yet chosen the first
// stands for all.
std::vector<ConfigCost> costs_of(const Comparison& comparison, const SweepOrders& orders);

}  // namespace headlab
