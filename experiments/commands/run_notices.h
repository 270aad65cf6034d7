// What a user may not expect of a training that begins, and how one that is stopped goes on: on
// stderr.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "experiments/data/source.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_files.h"

namespace headlab {

// Where the schedule never reaches its peak.
void say_unreached_rate(const Experiment& experiment, const DataSource& data);
// The run beside `path` that differs from this one in its data alone, where there is one.
void say_same_on_other_data(const std::filesystem::path& path, const Experiment& experiment,
                            const nlohmann::ordered_json& data);

// From now on signals are noted: for a command that trains where it is asked to.
void note_signals();
// On stderr: where a stopped run stands, and what goes on with it; `run`: how the run that `@`
// meant is named, if the command has one.
void say_what_goes_on(const RunStatus& status, const std::string& run);

}  // namespace headlab
