#include "experiments/pruning/kept_rounds.h"

#include "core/torch.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {
namespace {
using KeptJson = nlohmann::ordered_json;
}  // namespace

KeptJson heads_json(const std::vector<HeadId>& heads) {
  auto json = KeptJson::array();
  for (const auto& id : heads) json.push_back(KeptJson::array({id.site, id.layer, id.head}));
  return json;
}

std::vector<HeadId> heads_of(const KeptJson& json) {
  std::vector<HeadId> heads;
  for (const auto& id : json)
    heads.push_back(
        {id.at(1).get<int64_t>(), id.at(2).get<int64_t>(), id.at(0).get<std::string>()});
  return heads;
}

KeptJson evaluation_json(const Evaluation& e) {
  auto means = KeptJson::array();
  for (const auto& mean : e.means)
    means.push_back(KeptJson::array(
        {mean.name, mean.units, mean.long_name, mean.formula, metric_json(mean.value)}));
  return {{"split", static_cast<int>(e.split)},
          {"means", means},
          {"tokens", e.tokens},
          {"examples", e.examples},
          {"batches", e.batches},
          {"used", e.of_split.used},
          {"all", e.of_split.all}};
}

Evaluation evaluation_of(const KeptJson& json) {
  Evaluation e{.split = static_cast<Split>(json.at("split").get<int>()),
               .tokens = json.at("tokens"),
               .examples = json.at("examples"),
               .batches = json.at("batches"),
               .of_split = {json.at("used"), json.at("all")}};
  for (const auto& mean : json.at("means"))
    e.means.push_back({{mean.at(0), mean.at(1), mean.at(2), mean.at(3)}, metric_value(mean.at(4))});
  return e;
}

KeptJson round_json(const PruneRound& round) {
  return {{"removed", heads_json(round.removed)},
          {"kept", round.kept},
          {"parameters", round.parameters},
          {"flops", round.flops},
          {"evaluation", evaluation_json(round.evaluation)},
          {"seconds", round.seconds}};
}

PruneRound round_of(const KeptJson& json) {
  return {.removed = heads_of(json.at("removed")),
          .kept = json.at("kept"),
          .parameters = json.at("parameters"),
          .flops = json.at("flops"),
          .evaluation = evaluation_of(json.at("evaluation")),
          .seconds = json.at("seconds")};
}

KeptJson grids_json(const SiteGrids& grids) {
  auto json = KeptJson::object();
  for (const auto& [site, grid] : grids) {
    auto& rows = json[site] = KeptJson::array();
    for (int64_t l = 0; l < grid.size(0); ++l) {
      auto& row = rows.emplace_back(KeptJson::array());
      for (int64_t h = 0; h < grid.size(1); ++h)
        row.push_back(metric_json(grid[l][h].item<double>()));
    }
  }
  return json;
}

SiteGrids grids_of(const KeptJson& json) {
  SiteGrids grids;
  for (const auto& [site, rows] : json.items()) {
    std::vector<double> values;
    for (const auto& row : rows)
      for (const auto& value : row) values.push_back(metric_value(value));
    const auto layers = std::ssize(rows);
    grids[site] = at::tensor(values, at::kDouble)
                      .view({layers, layers == 0 ? 0 : std::ssize(values) / layers});
  }
  return grids;
}

}  // namespace headlab
