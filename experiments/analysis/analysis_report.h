// What an analysis found, as JSON and as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/analysis/analysis.h"
#include "experiments/analysis/maps/map_file.h"

namespace headlab {

// Examples, sizes, every statistic nested by its dimensions, roles and their thresholds; of several
// sites, each under its name in `sites`.
nlohmann::ordered_json analysis_json(const std::vector<Analysis>& sites);

// A line a head: the main statistics that there are, and its roles; or the reductions of
// importance. Below, what the columns are, with units. `sort`: the most important head first, where
// importance is known.
std::string analysis_text(const std::vector<Analysis>& sites, bool sort);
std::string importance_text(const std::vector<Analysis>& sites, bool sort);

// Which head follows which dependency relation best, as Clark et al. 2019 (arXiv 1906.04341, table
// 1) have it: a line for each relation with enough words, those of most words first, with the head
// that predicts it best, in which direction, and the fixed offset that does; of add_syntax()'s
// arrays. Empty where no treebank was read.
std::string relations_text(const std::vector<Analysis>& sites);

// {"file": its path, "causal", "causal_from"}: how maps of a file were taken; as a line where the
// weights decided that they are causal, else empty.
nlohmann::ordered_json maps_json(const std::filesystem::path& path, const MapFile& file);
std::string maps_text(const MapFile& file);

// Statistics and roles of every site, for a file.
std::vector<LabelledGroup> analysis_groups(const std::vector<Analysis>& sites);
// As a file of maps: `about` them in the manifest.
void write_analysis(const std::filesystem::path& out, const std::filesystem::path& maps,
                    const Analysis& analysis, const nlohmann::ordered_json& about);

}  // namespace headlab
