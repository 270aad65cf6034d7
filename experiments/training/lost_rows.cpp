#include "experiments/training/lost_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace headlab {
namespace {

using Columns = std::map<std::string, std::vector<double>>;  // by name in the log
using Rows = std::map<int64_t, MetricsRow>;                  // by step

// The numbers of a group at row n, by their names in metrics.jsonl. At step 0 the log has a value
// for what no update has made.
void add_values(const std::vector<TrainingMetric>& table, MetricGroup group, const Columns& columns,
                size_t n, MetricsRow& row) {
  for (const auto& metric : table) {
    if (metric.group != group || metric.line.empty() || (row.step == 0 && metric.absent)) continue;
    const auto column = columns.find(metric.name);
    if (column != columns.end() && !std::isnan(column->second[n]))
      row.values[metric.line] = column->second[n];
  }
}

// Those that the log has numbers of training for.
Rows logged_rows(const std::vector<TrainingMetric>& table, TrainingLog& log) {
  const auto scalars = log.file().numbers("scalars"), evals = log.file().numbers("eval");
  Rows rows;
  for (size_t n = 0; n < scalars.at("step").size(); ++n) {
    MetricsRow row{.step = static_cast<int64_t>(scalars.at("step")[n]),
                   .tokens = static_cast<int64_t>(scalars.at("tokens")[n]),
                   .wall_s = scalars.at("wall_time")[n],
                   .values = {}};
    add_values(table, MetricGroup::kScalars, scalars, n, row);
    rows[row.step] = std::move(row);
  }
  for (size_t n = 0; n < evals.at("step").size(); ++n)
    if (const auto row = rows.find(static_cast<int64_t>(evals.at("step")[n])); row != rows.end())
      add_values(table, MetricGroup::kEvals, evals, n, row->second);
  return rows;
}

// Of a row the numbers of a group by their names in the log; none where it has none of them.
RunLog::Values values_of(const std::vector<TrainingMetric>& table, MetricGroup group,
                         const MetricsRow& row) {
  RunLog::Values values, absent;
  for (const auto& metric : table) {
    if (metric.group != group) continue;
    const auto found = row.values.find(metric.line);
    if (found != row.values.end())
      values[metric.name] = found->second;
    else if (metric.absent)
      absent[metric.name] = *metric.absent;
  }
  if (!values.empty()) values.merge(absent);
  return values;
}

void write_to(TrainingLog& log, const std::vector<TrainingMetric>& table, const Rows& rows) {
  for (const auto& [step, row] : rows) {
    if (const auto values = values_of(table, MetricGroup::kScalars, row); !values.empty())
      log.file().scalars(step, row.wall_s, row.tokens, values);
    if (const auto values = values_of(table, MetricGroup::kEvals, row); !values.empty())
      log.eval(step, values);
  }
}

}  // namespace

std::vector<std::string> restore_rows(int64_t step, const std::vector<TrainingMetric>& table,
                                      std::vector<MetricsRow> kept, MetricsFile& metrics,
                                      TrainingLog& log) {
  const auto logged = logged_rows(table, log);
  Rows rows;
  for (auto& row : kept) rows[row.step] = std::move(row);
  if (rows.empty() && logged.empty())
    return {fmt::format(
        "metrics.jsonl and log.h5 have lost every row up to step {}; they begin anew", step)};
  if (logged.empty()) {
    write_to(log, table, rows);
    return {
        fmt::format("log.h5 has lost every row up to step {}: {} rows of numbers are made again "
                    "from metrics.jsonl, what heads did until then is lost",
                    step, rows.size())};
  }
  const auto before = rows.size();
  for (const auto& [at, row] : logged) rows.try_emplace(at, row);
  if (rows.size() == before) return {};
  std::vector<MetricsRow> whole;
  for (const auto& [at, row] : rows) whole.push_back(row);
  metrics.replace(whole);
  return {
      fmt::format("metrics.jsonl has lost {} rows up to step {}; they are made again from "
                  "log.h5, in its single precision",
                  rows.size() - before, step)};
}

}  // namespace headlab
