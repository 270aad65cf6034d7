// The summary of a sweep as a table, CSV and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"
#include "experiments/sweeps/sweep_summary.h"
#include "experiments/text/csv_line.h"
#include "experiments/text/duration.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::vector<std::string>>;

// Metrics that a person looks at, of those that are there.
std::vector<std::string> shown_metrics(const SweepSummary& summary) {
  std::vector<std::string> shown;
  for (const char* name : {"val/loss", "val/accuracy", "val/perplexity", "val/bleu", "test/loss",
                           "test/accuracy", "test/perplexity"})
    for (const auto& row : summary.rows)
      if (row.metrics.count(name)) {
        shown.emplace_back(name);
        break;
      }
  return shown;
}

std::set<std::string> all_metrics(const SweepSummary& summary) {
  std::set<std::string> names;
  for (const auto& row : summary.rows)
    for (const auto& [name, value] : row.metrics) names.insert(name);
  return names;
}

// Columns of a terminal that a text takes, with "±" among its letters.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The first `texts` columns are aligned left, the others right.
std::string aligned(const Cells& rows, size_t texts) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], columns_of(row[c]));
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += (c == 0 ? "" : "  ") + (c < texts ? fmt::format("{:<{}}", row[c], widths[c])
                                                : fmt::format("{:>{}}", row[c], widths[c]));
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

std::string points_text(const SweepSummary& summary, const std::vector<std::string>& metrics) {
  Cells rows{{"point", "run", "state", "steps"}};
  rows[0].insert(rows[0].end(), metrics.begin(), metrics.end());
  const bool devices = summary.devices().size() > 1;
  rows[0].insert(rows[0].end(), {"time", "code"});
  if (devices) rows[0].emplace_back("device");
  for (const auto& row : summary.rows) {
    auto& cells = rows.emplace_back(std::vector<std::string>{row.label, row.run.filename().string(),
                                                             point_state_name(row.status.state),
                                                             std::to_string(row.step)});
    for (const auto& name : metrics) {
      const auto value = row.metrics.find(name);
      cells.push_back(value == row.metrics.end() ? "" : fmt::format("{:.4f}", value->second));
    }
    cells.push_back(row.wall_s ? duration_text(*row.wall_s) : "");
    cells.push_back(row.code);
    if (devices) cells.push_back(row.device);
  }
  return aligned(rows, 3);
}

std::string means_text(const SweepSummary& summary, const std::vector<std::string>& metrics) {
  Cells rows{{"mean over seeds", "n"}};
  for (const auto& name : metrics) rows[0].push_back(name + " mean ± std");
  const bool devices = summary.devices().size() > 1;
  rows[0].insert(rows[0].end(), {"time", "code"});
  if (devices) rows[0].emplace_back("device");
  for (const auto& mean : summary.means) {
    const auto n = static_cast<int64_t>(mean.seeds.size());
    auto& cells = rows.emplace_back(std::vector<std::string>{
        mean.group, n == mean.asked ? std::to_string(n) : fmt::format("{} of {}", n, mean.asked)});
    for (const auto& name : metrics) {
      const auto found = mean.metrics.find(name);
      if (found == mean.metrics.end()) {
        cells.emplace_back();
        continue;
      }
      const auto& [value, deviation, count] = found->second;
      cells.push_back(deviation ? fmt::format("{:.4f} ± {:.4f}", value, *deviation)
                                : fmt::format("{:.4f}", value));
    }
    const auto time = mean.metrics.find("wall_s");
    cells.push_back(time == mean.metrics.end() ? "" : duration_text(time->second.mean));
    cells.push_back(mean.code);
    if (devices) cells.push_back(mean.device);
  }
  return aligned(rows, 1);
}

std::string csv_number(double value) {
  const auto json = metric_json(value);
  return json.is_string() ? json.get<std::string>() : shortest(value);
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
  auto text = points_text(summary, metrics);
  for (const auto& row : summary.rows)
    if (row.status.state != PointState::kFinished && !row.status.reason.empty())
      text += fmt::format("{} {}\n", row.label, row.state_text());
  if (!summary.means.empty()) text += "\n" + means_text(summary, metrics);
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
  const auto names = all_metrics(summary);
  std::vector<std::string> head{"point", "name", "run", "seed", "status", "step"};
  head.insert(head.end(), names.begin(), names.end());
  head.insert(head.end(), {"wall_s", "code"});
  const bool devices = summary.devices().size() > 1;
  if (devices) head.emplace_back("device");
  auto text = csv_line(head);
  for (const auto& row : summary.rows) {
    std::vector<std::string> cells{row.label,
                                   row.name,
                                   row.run.string(),
                                   std::to_string(row.seed),
                                   point_state_name(row.status.state),
                                   std::to_string(row.step)};
    for (const auto& name : names) {
      const auto value = row.metrics.find(name);
      cells.push_back(value == row.metrics.end() ? "" : csv_number(value->second));
    }
    cells.push_back(row.wall_s ? csv_number(*row.wall_s) : "");
    cells.push_back(row.code);
    if (devices) cells.push_back(row.device);
    text += csv_line(cells);
  }
  return text;
}

std::string means_csv(const SweepSummary& summary) {
  std::set<std::string> names;
  for (const auto& mean : summary.means)
    for (const auto& [name, spread] : mean.metrics) names.insert(name);
  std::vector<std::string> head{"group", "name", "n", "asked"};
  for (const auto& name : names) head.insert(head.end(), {name + " mean", name + " std"});
  head.emplace_back("code");
  const bool devices = summary.devices().size() > 1;
  if (devices) head.emplace_back("device");
  auto text = csv_line(head);
  for (const auto& mean : summary.means) {
    std::vector<std::string> cells{mean.group, mean.name, std::to_string(mean.seeds.size()),
                                   std::to_string(mean.asked)};
    for (const auto& name : names) {
      const auto found = mean.metrics.find(name);
      const bool there = found != mean.metrics.end();
      cells.push_back(there ? csv_number(found->second.mean) : "");
      cells.push_back(there && found->second.deviation ? csv_number(*found->second.deviation) : "");
    }
    cells.push_back(mean.code);
    if (devices) cells.push_back(mean.device);
    text += csv_line(cells);
  }
  return text;
}

void write_summary(const FrozenSweep& sweep, const SweepSummary& summary) {
  replace_file(sweep.folder / "summary.csv", rows_csv(summary));
  replace_file(sweep.folder / "means.csv", means_csv(summary));
  replace_file(sweep.folder / "summary.json", json_text(summary_json(sweep, summary), 2) + "\n");
}

}  // namespace headlab
