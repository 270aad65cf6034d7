// What `headlab sweep` and `headlab compare` share: the processes of their trainings, and what
// --dry-run prints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/commands/command.h"
#include "experiments/sweeps/sweep_costs.h"
#include "experiments/sweeps/sweep_run.h"

namespace headlab {

inline constexpr const char* kJobsHelp =
    "trainings at once (default: GPUs, else cores / threads of a training)";
inline constexpr const char* kRanksHelp = "processes that share a training, on this machine";

// Trainings on this machine: `jobs` at once, 0: as many as fit; `ranks` processes each, which take
// the GPUs that `device` lets them have.
SweepOrders orders_here(const FrozenSweep& sweep, int64_t jobs, int64_t ranks,
                        const std::string& device);

// The costs of each config, and of all points that are still to be trained. `what`, "sweep", is
// what the folder is of.
// The report's text ends with a line of what all of them take.
Report report_of(const std::string& what, const std::filesystem::path& folder,
                 const std::vector<ConfigCost>& costs, int64_t jobs);

}  // namespace headlab
