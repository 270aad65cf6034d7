// What `headlab sweep --dry-run` and `headlab compare --dry-run` print.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/commands/command.h"
#include "experiments/sweeps/sweep_costs.h"

namespace headlab {

// The costs of each config, and of all points that are still to be trained. `what`, "sweep", is
// what the folder is of.
// The report's text ends with a line of what all of them take.
Report report_of(const std::string& what, const std::filesystem::path& folder,
                 const std::vector<ConfigCost>& costs, int64_t jobs);

}  // namespace headlab
