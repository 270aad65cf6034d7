#include "experiments/conversion/conversion_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/inference/evaluate.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/text/number_text.h"
#include "experiments/text/table.h"

namespace headlab {

using Json = nlohmann::ordered_json;
namespace {

Table layers_table(const Json& layers, bool measured) {
  const auto any = [&](const char* key) {
    return std::ranges::any_of(layers, [&](const Json& layer) { return layer.contains(key); });
  };
  const bool sites = any("site"), orders = any("order"), latents = any("latent_share"),
             turned = any("rope_share");
  std::vector<Column> columns;
  if (sites) columns.push_back({.title = "site", .is_text = true});
  columns.push_back({.title = "layer"});
  if (latents) {
    if (turned) columns.push_back({.title = "keys with rope", .format = "{:.4f}"});
    columns.push_back({.title = "kept by the latent", .format = "{:.4f}"});
    columns.push_back({.title = "cache before"});
    columns.push_back({.title = "cache after"});
  } else {
    columns.push_back({.title = "weights error", .format = "{:.3e}"});
  }
  if (measured) columns.push_back({.title = "output error", .format = "{:.3e}"});
  if (orders) columns.push_back({.title = "heads in order", .is_text = true});
  Table table(std::move(columns));
  for (const auto& layer : layers) {
    std::vector<Cell> cells;
    if (sites) cells.emplace_back(layer["site"].get<std::string>());
    cells.emplace_back(layer["layer"].get<int64_t>());
    if (turned) cells.emplace_back(layer["rope_share"].get<double>());
    if (latents) {
      cells.emplace_back(layer["latent_share"].get<double>());
      for (const char* cache : {"cache_before", "cache_after"})
        cells.emplace_back(layer[cache].get<int64_t>());
    }
    if (!latents) cells.emplace_back(layer["weights_error"].get<double>());
    if (measured) cells.emplace_back(layer["output_error"].get<double>());
    if (orders) cells.emplace_back(layer.contains("order") ? layer["order"].dump() : "");
    table.add(std::move(cells));
  }
  return table;
}

}  // namespace

ConversionCost conversion_cost(const std::string& source, const OpenedRun& run,
                               const ConvertedModel& converted, int64_t most_batches,
                               const Compute& compute) {
  if (!run.data) {
    ConversionCost none;
    none.measured = false;
    return none;
  }
  const Sample sample{run.data.get(), run.data->evaluated(), run.experiment.train.eval_batch,
                      most_batches};
  if (sample.examples() == 0)
    throw DataError(source + ": its data has no validation split to measure the conversion on");
  const auto before = evaluate(*run.model, sample, compute);
  require_finite(before, *run.model);
  return {before, evaluate(*converted.model, sample, compute),
          compare_models(*run.model, *converted.model, sample, compute), most_batches};
}

Json conversion_json(const std::string& source, const std::string& to, const OpenedRun& run,
                     const ConvertedModel& converted, const ConversionCost& cost) {
  Json report{{"from", std::filesystem::canonical(source).string()},
              {"step", run.step},
              {"to", to},
              {"parameters_before", parameter_count(*run.model)},
              {"parameters_after", parameter_count(*converted.model)},
              {"layers", Json::array()}};
  for (const auto& [site, layers] : converted.layers)
    for (size_t l = 0; l < layers.size(); ++l) {
      auto& row = report["layers"].emplace_back(Json::object());
      if (converted.layers.size() > 1) row["site"] = site;
      row["layer"] = l;
      row["weights_error"] = layers[l].error;
      if (cost.measured) row["output_error"] = cost.errors.outputs.at(site)[l];
      if (!layers[l].order.empty()) row["order"] = layers[l].order;
      if (layers[l].rope_share) row["rope_share"] = *layers[l].rope_share;
      if (layers[l].latent_share) row["latent_share"] = *layers[l].latent_share;
      if (layers[l].cache_after) {
        row["cache_before"] = *layers[l].cache_before;
        row["cache_after"] = *layers[l].cache_after;
      }
    }
  if (!cost.measured) {
    report["measured"] = nullptr;
    return report;
  }
  report["logits_error"] = run.model->predicts() ? cost.errors.logits : kNaN;
  const auto& metric = cost.before.means.at(0);
  report["metric"] = metric.name, report["units"] = metric.units;
  report["split"] = split_name(cost.before.split);
  report["loss_before"] = cost.before.loss(), report["loss_after"] = cost.after.loss();
  report.update(measured_json(cost.after));
  report["measured"] = measured_text(cost.after);
  return report;
}

std::string conversion_text(const Json& report) {
  const bool measured = !report["measured"].is_null();
  auto text = layers_table(report["layers"], measured).text();
  if (measured)
    text += fmt::format("logits error {}, ",
                        number_text(report["logits_error"].get<double>(), "{:.3e}"));
  text += fmt::format("parameters {} -> {}\n", report["parameters_before"].get<int64_t>(),
                      report["parameters_after"].get<int64_t>());
  if (!measured)
    return text + "nothing was measured: the imported model has no data; --data names some\n";
  const auto metric = report["metric"].get<std::string>(),
             units = report["units"].get<std::string>();
  const auto what = fmt::format("{} {}", report["split"].get<std::string>(), metric);
  const auto unit = units == "1" ? "" : " " + units;
  text += fmt::format("{} {:.4f} -> {:.4f}{}", what, report["loss_before"].get<double>(),
                      report["loss_after"].get<double>(), unit);
  if (report.contains("loss_tuned"))
    text += fmt::format(" -> {:.4f} after {} updates", report["loss_tuned"].get<double>(),
                        report["tuned"].get<int64_t>());
  text += fmt::format(", {}\n", report["measured"].get<std::string>());
  if (report.contains("on_whole_split"))
    text += fmt::format("as converted, over the {}: {} {:.4f}{}\n",
                        report["on_whole_split"]["measured"].get<std::string>(), what,
                        report["on_whole_split"][metric].get<double>(), unit);
  return text;
}

}  // namespace headlab
