// What `headlab sweep --dry-run` prints.
#pragma once

#include <cstdint>
#include <vector>

#include "experiments/commands/report.h"
#include "experiments/runs/sweep_costs.h"

namespace headlab {

// The costs of each config, and of all points that are still to be trained.
Report report_of(const FrozenSweep& sweep, const std::vector<ConfigCost>& costs, int64_t jobs);

}  // namespace headlab
