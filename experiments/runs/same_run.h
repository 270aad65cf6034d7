// A run directory is one config, one data, one code of its kinds of heads: what differs from what
// lies there is never passed over.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/runs/begin_run.h"
#include "experiments/runs/experiment.h"

namespace headlab {

// In which settings the run at `run` differs from `experiment`, a line each; files that settings
// name are compared by their contents, elsewhere, and threads may differ. Empty: none.
std::vector<std::string> settings_that_differ(const std::filesystem::path& run,
                                              Experiment& experiment);

// What may lie at `path` for `experiment` on these data (data_json()) to be trained there.
// RunError, with what differs and the two ways out, where a run of other settings, data or kinds of
// heads is to be gone on with, or taken as the result. Where --resume names a run, its settings and
// data must be these, but not its code or its name: ConfigError where they are not, or where
// another command than `run` made it.
void require_same_run(const std::filesystem::path& path, Experiment& experiment,
                      const nlohmann::ordered_json& data, const ResumeFrom& from);

// What has changed since in the code that made the run at `path`, and is no reason to refuse it; ""
// where nothing has.
std::string code_since(const std::filesystem::path& path);
// Likewise of the number of CPU threads that it ran on; the manifest keeps both.
std::string threads_since(const std::filesystem::path& path, int64_t threads);

// `<out>/<name>/<hash>-s<seed>`, absolute; the hash is of what is not at its default.
std::filesystem::path run_path(const std::filesystem::path& out, Experiment& experiment);

// `data` of the manifest of the run at `path`; an empty array where there is none.
nlohmann::ordered_json kept_data(const std::filesystem::path& path);

// Whether `run` made the run of this manifest, and not a command that changes another one.
bool made_by_run(const nlohmann::ordered_json& manifest);

}  // namespace headlab
