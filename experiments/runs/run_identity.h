// What makes two experiments one run: their settings as they resolve, and the contents of the files
// that these name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "experiments/runs/experiment.h"

namespace headlab {

// Of an experiment as its files are now, by their contents, wherever they lie; a file that is not
// there counts by its path. Options at their default are left out, so that a new one moves no run.
ConfigNode identity_of(const Experiment& experiment);
// config_hash() of that. `folder`: of the runs of its name, whose manifests spare reading large
// files that they know.
std::string run_hash(const Experiment& experiment, const std::filesystem::path& folder = {});
// Of the run that lies at `run`, by its config and the data that its manifest tells of. ConfigError
// where its config is not one of this version.
std::string hash_of_run(const std::filesystem::path& run);

// A run in `folder` of that hash and seed whose directory is named otherwise, as older versions
// named it: a finished one first.
std::optional<std::filesystem::path> run_of_other_name(const std::filesystem::path& folder,
                                                       const std::string& hash, int64_t seed);

}  // namespace headlab
