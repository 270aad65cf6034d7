// What pruning did to a model: as JSON, text, arrays and a table, and the run that it leaves.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/pruning/prune.h"

namespace headlab {

// `run`: the pruned one; `source`: the directory that it was opened from; `slice`: the model that
// is kept is the sliced one.
nlohmann::ordered_json pruning_json(const std::string& source, bool slice, const OpenedRun& run,
                                    const Pruning& pruning);
// As a table; `task`: that of the run.
std::string pruning_text(const nlohmann::ordered_json& report, const Task& task);

// The run of the model, masked or sliced, with pruning.h5 and pruning.csv in it: a new one, or the
// one that tuning has begun.
void write_pruned(const std::filesystem::path& out, const OpenedRun& run,
                  const std::shared_ptr<Model>& model, const Pruning& pruning,
                  const nlohmann::ordered_json& report, const at::Device& device, Tuning& tuning);

}  // namespace headlab
