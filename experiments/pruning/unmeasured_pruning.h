// Pruning of a model for which there are no data: nothing is ranked by examples, nothing measured.
#pragma once

#include "experiments/pruning/pruned_run.h"

namespace headlab {

// As prune_run(), of a run without data. ConfigError where `settings` ask for some.
PrunedRun prune_unmeasured(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                           bool slice, const std::filesystem::path& out, const Compute& compute);

}  // namespace headlab
