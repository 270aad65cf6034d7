// The HDF5 file of the results of an analysis: /analysis, /roles, /ablation, /pruning, in the
// schema of the log. No torch in here.
#pragma once

#include <filesystem>
#include <vector>

#include "experiments/logs/labelled_arrays.h"
#include "experiments/logs/run_log.h"

namespace headlab {

// RunError where write_results() could not even begin: ask before hours of work.
void require_place(const std::filesystem::path& path);

// Writes the file whole or not at all, in the place of an older one. RunError where the storage
// refuses; std::invalid_argument for an array whose axes are unknown or do not fit its values.
void write_results(const std::filesystem::path& path, const RootAttributes& attributes,
                   const std::vector<LabelledGroup>& groups);

}  // namespace headlab
