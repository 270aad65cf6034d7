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
                                              const Experiment& experiment);

// What may lie at `path` for `experiment` to be trained there by a process of this manifest.
// RunError, with what differs and the ways out, where a run of other settings, data, device,
// precision or kinds of heads is to be gone on with, or taken as the result. Where --resume names a
// run, all of these but its code and its name must be the same: ConfigError where they are not, or
// where another command than `run` made it.
void require_same_run(const std::filesystem::path& path, const Experiment& experiment,
                      const nlohmann::ordered_json& manifest, const ResumeFrom& from);

// The same for a command that makes its run of another one and tunes it: what it was asked for is
// `tuning` in the manifest. RunError, with what differs, also where no such command began what lies
// there.
void require_same_tuning(const std::filesystem::path& path, const Experiment& experiment,
                         const nlohmann::ordered_json& manifest);

// `tuning` of a manifest: `command`, the weights of the checkpoint that it begins with, and
// `options`, those that its result depends on.
nlohmann::ordered_json tuning_json(const std::string& command,
                                   const std::filesystem::path& checkpoint,
                                   const nlohmann::ordered_json& options);

// A report that was read back from a manifest: what is null there is a number that is not finite.
nlohmann::ordered_json with_numbers(nlohmann::ordered_json report);

// What has changed since in the code that made the run at `path`, and is no reason to refuse it; ""
// where nothing has.
std::string code_since(const std::filesystem::path& path);
// The same, and of the number of CPU threads that it ran on, of the machine and its libraries, a
// line each; `manifest` is this process's.
std::vector<std::string> changed_since(const std::filesystem::path& path,
                                       const nlohmann::ordered_json& manifest);

// `<out>/<name>/<hash>-s<seed>`, absolute, of run_hash(); where no run lies there, one of the same
// identity under the name that an older version gave it.
std::filesystem::path run_path(const std::filesystem::path& out, const Experiment& experiment);

// Runs beside `path`, where none lies, of the same settings and seed but other data: what to say of
// the first, "" where there is none. `data` are data_json() of this experiment.
std::string same_on_other_data(const std::filesystem::path& path, const Experiment& experiment,
                               const nlohmann::ordered_json& data);

// `data` of the manifest of the run at `path`; an empty array where there is none.
nlohmann::ordered_json kept_data(const std::filesystem::path& path);

// Whether `run` made the run of this manifest, and not a command that changes another one.
bool made_by_run(const nlohmann::ordered_json& manifest);

}  // namespace headlab
