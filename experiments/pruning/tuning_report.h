// What is said where tuning ended before its time: how, and what is left.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/pruning/prune.h"

namespace headlab {

// `out`: the run that tuning keeps, of `run`; tuning.ended() is there.
nlohmann::ordered_json ended_json(const std::filesystem::path& out, const OpenedRun& run,
                                  const PruneSettings& settings, const Tuning& tuning);
std::string ended_text(const nlohmann::ordered_json& report);

}  // namespace headlab
