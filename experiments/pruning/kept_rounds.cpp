#include "experiments/pruning/kept_rounds.h"

#include "core/torch.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

using KeptJson = nlohmann::ordered_json;

void to_json(KeptJson& json, const HeadId& id) {
  json = KeptJson::array({id.site, id.layer, id.head});
}

void from_json(const KeptJson& json, HeadId& id) {
  id = {json.at(1).get<int64_t>(), json.at(2).get<int64_t>(), json.at(0).get<std::string>()};
}

void to_json(KeptJson& json, const MetricValue& mean) {
  json = KeptJson::array(
      {mean.name, mean.units, mean.long_name, mean.formula, metric_json(mean.value)});
}

void from_json(const KeptJson& json, MetricValue& mean) {
  mean = {{json.at(0), json.at(1), json.at(2), json.at(3)}, metric_value(json.at(4))};
}

void to_json(KeptJson& json, const Evaluation& e) {
  json = {{"split", e.split},       {"means", e.means},     {"tokens", e.tokens},
          {"examples", e.examples}, {"batches", e.batches}, {"used", e.of_split.used},
          {"all", e.of_split.all}};
}

void from_json(const KeptJson& json, Evaluation& e) {
  e = {.split = json.at("split"),
       .means = json.at("means"),
       .tokens = json.at("tokens"),
       .examples = json.at("examples"),
       .batches = json.at("batches"),
       .of_split = {json.at("used"), json.at("all")}};
}

void to_json(KeptJson& json, const PruneRound& round) {
  json = {{"removed", round.removed},       {"kept", round.kept},
          {"parameters", round.parameters}, {"flops", round.flops},
          {"evaluation", round.evaluation}, {"seconds", round.seconds}};
}

void from_json(const KeptJson& json, PruneRound& round) {
  round = {.removed = json.at("removed"),
           .kept = json.at("kept"),
           .parameters = json.at("parameters"),
           .flops = json.at("flops"),
           .evaluation = json.at("evaluation"),
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
