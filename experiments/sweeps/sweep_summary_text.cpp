// The summary of a sweep as a table, CSV and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"
#include "experiments/sweeps/sweep_summary.h"
#include "experiments/text/duration.h"
#include "experiments/text/table.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Of rows, or of means: the metrics that one of them has, sorted.
template <class Rows>
std::vector<std::string> names_in(const Rows& rows) {
  std::set<std::string> names;
  for (const auto& row : rows)
    for (const auto& [name, value] : row.metrics) names.insert(name);
  return {names.begin(), names.end()};
}

// Metrics that a person looks at: all results of an evaluation, the loss first.
std::vector<std::string> shown_metrics(const SweepSummary& summary) {
  std::vector<std::string> shown;
  const auto names = names_in(summary.rows);
  for (const auto split : {Split::kValidation, Split::kTest}) {
    const auto loss = metric_name(split, kLoss);
    if (std::ranges::count(names, loss) > 0) shown.push_back(loss);
    for (const auto& name : names)
      if (name.starts_with(metric_name(split, "")) && is_result(name) && name != loss)
        shown.push_back(name);
  }
  return shown;
}

Cell metric_cell(const std::optional<double>& value) {
  if (!value) return {};
  return {fmt::format("{:.4f}", *value), metric_json(*value)};
}

template <class Named>
auto find_in(const std::map<std::string, Named>& all, const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? std::optional<Named>() : std::optional(found->second);
}

Table points_table(const SweepSummary& summary, const std::vector<std::string>& metrics) {
  const bool devices = summary.devices().size() > 1;
  std::vector<Column> columns{{.name = "point", .is_text = true},
                              {.name = "name", .shown = false},
                              {.name = "run", .is_text = true},
                              {.name = "seed", .shown = false},
                              {.name = "status", .title = "state", .is_text = true},
                              {.name = "step", .title = "steps"}};
  for (const auto& name : metrics) columns.push_back({.name = name});
  columns.push_back({.name = "wall_s", .title = "time"});
  columns.push_back({.name = "code"});
  if (devices) columns.push_back({.name = "device"});
  Table table(std::move(columns));
  for (const auto& row : summary.rows) {
    std::vector<Cell> cells{row.label,
                            row.name,
                            {row.run.filename().string(), row.run.string()},
                            row.seed,
                            point_state_name(row.status.state),
                            row.step};
    for (const auto& name : metrics) cells.push_back(metric_cell(find_in(row.metrics, name)));
    cells.push_back(row.wall_s ? Cell(duration_text(*row.wall_s), metric_json(*row.wall_s))
                               : Cell());
    cells.emplace_back(row.code);
    if (devices) cells.emplace_back(row.device);
    table.add(std::move(cells));
  }
  return table;
}

Table means_table(const SweepSummary& summary, const std::vector<std::string>& metrics) {
  const bool devices = summary.devices().size() > 1;
  std::vector<Column> columns{{.name = "group", .title = "mean over seeds", .is_text = true},
                              {.name = "name", .shown = false},
                              {.name = "n"},
                              {.name = "asked", .shown = false}};
  for (const auto& name : metrics) {
    columns.push_back({.name = name + " mean", .title = name + " mean ± std"});
    columns.push_back({.name = name + " std", .shown = false});
  }
  columns.push_back({.name = "", .title = "time"});
  columns.push_back({.name = "code"});
  if (devices) columns.push_back({.name = "device"});
  Table table(std::move(columns));
  for (const auto& mean : summary.means) {
    const auto n = static_cast<int64_t>(mean.seeds.size());
    std::vector<Cell> cells{
        mean.group,
        mean.name,
        {n == mean.asked ? std::to_string(n) : fmt::format("{} of {}", n, mean.asked), n},
        mean.asked};
    for (const auto& name : metrics) {
      const auto found = find_in(mean.metrics, name);
      const auto deviation = found ? found->deviation : std::nullopt;
      cells.push_back(!found      ? Cell()
                      : deviation ? Cell(fmt::format("{:.4f} ± {:.4f}", found->mean, *deviation),
                                         metric_json(found->mean))
                                  : metric_cell(found->mean));
      cells.push_back(metric_cell(deviation));
    }
    const auto time = find_in(mean.metrics, "wall_s");
    cells.push_back(time ? Cell(duration_text(time->mean)) : Cell());
    cells.emplace_back(mean.code);
    if (devices) cells.emplace_back(mean.device);
    table.add(std::move(cells));
  }
  return table;
}

Json row_json(const SweepRow& row) {
  Json metrics = Json::object();
  for (const auto& [name, value] : row.metrics) metrics[name] = metric_json(value);
  return {{"point", row.label},
          {"run", row.run.string()},
          {"name", row.name},
          {"seed", row.seed},
          {"status", point_state_name(row.status.state)},
          {"reason", row.status.reason},
          {"step", row.step},
          {"metrics", metrics},
          {"wall_s", row.wall_s ? Json(*row.wall_s) : Json()},
          {"code", row.code},
          {"device", row.device}};
}

Json mean_json(const SweepMean& mean) {
  Json metrics = Json::object();
  for (const auto& [name, spread] : mean.metrics)
    metrics[name] = {{"mean", metric_json(spread.mean)},
                     {"std", spread.deviation ? metric_json(*spread.deviation) : Json()},
                     {"n", spread.n}};
  return {{"group", mean.group}, {"name", mean.name}, {"seeds", mean.seeds},  {"asked", mean.asked},
          {"metrics", metrics},  {"code", mean.code}, {"device", mean.device}};
}

}  // namespace

std::string summary_text(const SweepSummary& summary) {
  const auto metrics = shown_metrics(summary);
  auto text = points_table(summary, metrics).text();
  for (const auto& row : summary.rows)
    if (row.status.state != PointState::kFinished && !row.status.reason.empty())
      text += fmt::format("{} {}\n", row.label, row.state_text());
  if (!summary.means.empty()) text += "\n" + means_table(summary, metrics).text();
  for (const auto& notice : summary.notices) text += notice + "\n";
  return text;
}

Json summary_json(const FrozenSweep& sweep, const SweepSummary& summary) {
  Json object{{"sweep", sweep.folder.string()},
              {"points", Json::array()},
              {"means", Json::array()},
              {"notices", summary.notices}};
  for (const auto& row : summary.rows) object["points"].push_back(row_json(row));
  for (const auto& mean : summary.means) object["means"].push_back(mean_json(mean));
  return object;
}

std::string rows_csv(const SweepSummary& summary) {
  return points_table(summary, names_in(summary.rows)).csv();
}

std::string means_csv(const SweepSummary& summary) {
  return means_table(summary, names_in(summary.means)).csv();
}

void write_summary(const FrozenSweep& sweep, const SweepSummary& summary) {
  replace_file(sweep.folder / "summary.csv", rows_csv(summary));
  replace_file(sweep.folder / "means.csv", means_csv(summary));
  replace_file(sweep.folder / "summary.json", json_text(summary_json(sweep, summary), 2) + "\n");
}

}  // namespace headlab
