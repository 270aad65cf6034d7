// What a training says of itself: what a user may not expect of it, how it ended, and how one that
// is stopped goes on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "experiments/data/data_description.h"
#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_files.h"

namespace headlab {

// Where the schedule never reaches its peak.
void say_unreached_rate(const Experiment& experiment, const DataSource& data);

// From now on signals are noted: for a command that trains where it is asked to.
void note_signals();
// On stderr: where a stopped run stands, and what goes on with it; `run`: how the run that `@`
// meant is named, if the command has one.
void say_what_goes_on(const RunStatus& status, const std::string& run);

// Its path, state, metrics and, where it is not empty, what has changed in the code since: as text,
// or one JSON object. -> kDone
int print_outcome(const std::filesystem::path& path, const RunStatus& status, bool json,
                  const std::string& code = "");

// The same of a run that was finished before.
int print_finished(const std::filesystem::path& path, const RunStatus& status, bool json);

// The exit code of a signal that came before anything was written, which is said; none: none came.
std::optional<int> code_of_early_stop();

// On stderr: the config, what it trains, where, and the run; where its schedule never reaches its
// peak, that too.
void say_what_begins(const std::string& config, const Experiment& experiment, Model& model,
                     const DataSource& data, const at::Device& device,
                     const std::filesystem::path& path);
// On stderr: what one does with a finished run of such a model and data, as commands to paste;
// where a stopped one stands, and what goes on with it.
void say_what_comes_next(const std::filesystem::path& path, const Experiment& experiment,
                         const RunStatus& status, const Model& model,
                         const DataDescription& description);

}  // namespace headlab
