// Rounds of pruning as JSON that they are read back from, to the bit: for a process that goes on.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/pruning/prune.h"

namespace headlab {

void to_json(nlohmann::ordered_json& json, const HeadId& id);
void from_json(const nlohmann::ordered_json& json, HeadId& id);

void to_json(nlohmann::ordered_json& json, const Evaluation& evaluation);
void from_json(const nlohmann::ordered_json& json, Evaluation& evaluation);

// Without `uncut`.
void to_json(nlohmann::ordered_json& json, const PruneRound& round);
void from_json(const nlohmann::ordered_json& json, PruneRound& round);

nlohmann::ordered_json grids_json(const SiteGrids& grids);
SiteGrids grids_of(const nlohmann::ordered_json& json);

}  // namespace headlab
