// Rounds of pruning as JSON that they are read back from, to the bit: for a process that goes on.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/pruning/prune.h"

namespace headlab {

nlohmann::ordered_json heads_json(const std::vector<HeadId>& heads);
std::vector<HeadId> heads_of(const nlohmann::ordered_json& json);

nlohmann::ordered_json evaluation_json(const Evaluation& evaluation);
Evaluation evaluation_of(const nlohmann::ordered_json& json);

nlohmann::ordered_json round_json(const PruneRound& round);  // without `uncut`
PruneRound round_of(const nlohmann::ordered_json& json);

nlohmann::ordered_json grids_json(const SiteGrids& grids);
SiteGrids grids_of(const nlohmann::ordered_json& json);

}  // namespace headlab
