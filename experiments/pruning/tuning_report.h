// What is said where tuning ended before its time: how, what is left, and how to go on.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/pruning/prune.h"

namespace headlab {

// `out`: the run that tuning keeps, of `run`; tuning.ended() is there. A stopped one has `go_on`:
// the commands that do the rest.
nlohmann::ordered_json ended_json(const std::filesystem::path& out, const OpenedRun& run,
                                  const PruneSettings& settings, const Tuning& tuning);
std::string ended_text(const nlohmann::ordered_json& report);

}  // namespace headlab
