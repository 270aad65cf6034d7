// The report of a comparison as Markdown.
#include <fmt/format.h>

#include "experiments/comparison/comparison_report.h"
#include "experiments/system/duration.h"
#include "experiments/system/with_commas.h"

namespace headlab {
namespace {

using Cells = std::vector<std::string>;
constexpr const char* kNoCell = "-";

// What stands in a row of a task's table.
struct TableRow {
  const Comparison& comparison;
  const ChosenRates& rates;
  const std::vector<ComparedTask>& tasks;
  size_t task, arm;

  const TaskArm& sized() const { return comparison.arms[task][arm]; }
  const ComparedArm& compared() const { return tasks[task].arms[arm]; }
  const std::string& name() const { return comparison.written.arms[arm].name; }
};

std::string cell(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : kNoCell;
}

std::string p_cell(const std::optional<double>& p) {
  if (!p) return kNoCell;
  return *p < 0.001 ? "< .001" : fmt::format("{:.3f}", *p);
}

std::string speedup_cell(const ComparedArm& arm) {
  const auto speedup = arm.speedup();
  if (!speedup) return kNoCell;
  const char* bound = arm.reach.bound == Reach::kAbove   ? "> "
                      : arm.reach.bound == Reach::kBelow ? "< "
                                                         : "";
  return fmt::format("{}{:.2f}", bound, *speedup);
}

Cells head_cells(const Comparison& comparison, const std::vector<std::string>& metrics) {
  const auto& baseline = comparison.written.arms[comparison.written.baseline].name;
  Cells cells{"arm", "parameters", "d_ff", "head_dim", "rate"};
  for (const auto& name : metrics) {
    const bool loss = name == kLossMetric;
    cells.push_back(name + (loss ? " [nat]" : "") + ", mean ± sd");
    cells.push_back(fmt::format("less {}'s [95 %]", baseline));
    cells.insert(cells.end(), {"p", "p, Holm"});
  }
  cells.insert(cells.end(),
               {"effective speedup", "val/loss at equal time [nat]", "time", "entropy [nat]",
                "largest logit", "first-token share", "heads that survive pruning"});
  return cells;
}

void add_metric_cells(Cells& cells, const ComparedMetric& metric) {
  cells.push_back(
      fmt::format("{:.4f} ± {:.4f}", metric.spread.mean, metric.spread.deviation.value_or(0)));
  if (!metric.difference) {
    cells.insert(cells.end(), {kNoCell, kNoCell, kNoCell});
    return;
  }
  const auto& difference = *metric.difference;
  cells.push_back(fmt::format("{:+.4f} [{:+.4f}, {:+.4f}]", difference.mean,
                              difference.interval->low, difference.interval->high));
  cells.push_back(p_cell(difference.p));
  cells.push_back(p_cell(metric.corrected) + (metric.reported() ? " *" : ""));
}

Cells row_cells(const TableRow& row, const std::vector<std::string>& metrics) {
  const auto& arm = row.compared();
  const auto& sized = row.sized();
  Cells cells{row.name()};
  if (sized.takes_part()) {
    const auto& rate = row.rates[row.task][row.arm];
    const auto adapted = [&](Match match, int64_t width) {
      return fmt::format("{}{}", width,
                         sized.adapted && row.comparison.written.tasks[row.task].match == match
                             ? " (adapted)"
                             : "");
    };
    cells.push_back(
        fmt::format("{} ({:+.1f} %)", with_commas(sized.parameters), 100 * sized.excess));
    cells.push_back(adapted(Match::kHiddenWidth, sized.hidden_width()));
    cells.push_back(adapted(Match::kHeadDim, sized.head_dim()));
    cells.push_back(rate.rate ? fmt::format("{}{}", *rate.rate, rate.at_edge ? " (edge)" : "")
                              : kNoCell);
  } else {
    cells.insert(cells.end(), 4, kNoCell);
  }
  for (const auto& name : metrics)
    if (const auto metric = arm.metrics.find(name); metric != arm.metrics.end())
      add_metric_cells(cells, metric->second);
    else
      cells.insert(cells.end(), {arm.missing.empty() ? kNoCell : "- (" + arm.missing + ")", kNoCell,
                                 kNoCell, kNoCell});
  cells.insert(
      cells.end(),
      {speedup_cell(arm), cell(arm.equal_time, 4),
       arm.wall_s ? duration_text(*arm.wall_s) : kNoCell, cell(arm.heads.entropy, 2),
       cell(arm.heads.max_logit, 1), cell(arm.heads.first_token, 3),
       arm.surviving ? fmt::format("{:.1f} of {}", *arm.surviving, arm.built_heads) : kNoCell});
  return cells;
}

std::string table_line(const Cells& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

TaskTable table_of(const Comparison& comparison, const ChosenRates& rates,
                   const std::vector<ComparedTask>& tasks, size_t task) {
  const auto metrics = compared_metrics(comparison, task);
  TaskTable table{.head = head_cells(comparison, metrics), .rows = {}};
  for (size_t arm = 0; arm < tasks[task].arms.size(); ++arm)
    table.rows.push_back(row_cells({comparison, rates, tasks, task, arm}, metrics));
  return table;
}

std::string table_text(const TaskTable& table) {
  auto text = table_line(table.head) + "|---|";
  for (size_t i = 1; i < table.head.size(); ++i) text += "--:|";
  text += "\n";
  for (const auto& row : table.rows) text += table_line(row);
  return text;
}

// What the figures of a task's table were measured on.
std::string measured_on_text(const Comparison& comparison, const ComparedTask& task, size_t t) {
  const auto& written = comparison.written;
  const auto count = [&](const char* name) {
    const auto found = task.measured_on.find(name);
    return found == task.measured_on.end() ? std::string("?")
                                           : with_commas(static_cast<int64_t>(found->second));
  };
  auto text = fmt::format(
      "Measured on the {}validation split, {} examples, {} scored targets; seeds {}",
      task.measured_on.count("val/whole_split") && task.measured_on.at("val/whole_split") == 1
          ? "whole "
          : "",
      count("val/examples"), count("val/tokens"), fmt::join(written.seeds, ", "));
  if (ComparisonFile::chooses(written.tasks[t]))
    text +=
        fmt::format("; rates chosen of {} on seed {} after {} of {} steps",
                    fmt::join(written.tasks[t].rates, ", "), fmt::join(written.choose_seeds, ", "),
                    written.tasks[t].choosing_steps(comparison.baseline(t).steps),
                    comparison.baseline(t).steps);
  text += fmt::format(
      "; parameters matched by {}; Holm over the arms of this table; *: reported, for the "
      "corrected "
      "p is below {}",
      match_name(written.tasks[t].match), kReportedBelow);
  return text + ".\n";
}

// Digests of the code of the trainings, and whose they are.
std::string codes_text(const Comparison& comparison, const ComparedTask& task) {
  std::map<std::string, Cells> arms;
  for (size_t a = 0; a < task.arms.size(); ++a)
    if (!task.arms[a].code.empty())
      arms[task.arms[a].code].push_back(comparison.written.arms[a].name);
  std::string text;
  for (const auto& [code, names] : arms)
    text += fmt::format("- code {}: {}\n", code, fmt::join(names, ", "));
  return text;
}

std::string notices_text(const Comparison& comparison, const ComparedTask& task) {
  std::string text;
  for (size_t a = 0; a < task.arms.size(); ++a) {
    const auto& name = comparison.written.arms[a].name;
    const auto& arm = task.arms[a];
    if (!arm.missing.empty()) text += fmt::format("- {}: no statistics: {}\n", name, arm.missing);
    for (const auto& notice : arm.notices) text += fmt::format("- {}: {}\n", name, notice);
    for (const auto& [metric, compared] : arm.metrics)
      if (compared.difference && compared.difference->bootstrap)
        text +=
            fmt::format("- {}: {}: bootstrap [{:+.4f}, {:+.4f}]\n", name, metric,
                        compared.difference->bootstrap->low, compared.difference->bootstrap->high);
  }
  for (const auto& notice : task.notices) text += fmt::format("- {}\n", notice);
  return text + codes_text(comparison, task);
}

}  // namespace

std::vector<TaskTable> comparison_tables(const Comparison& comparison, const ChosenRates& rates,
                                         const std::vector<ComparedTask>& tasks) {
  std::vector<TaskTable> tables;
  for (size_t t = 0; t < tasks.size(); ++t) tables.push_back(table_of(comparison, rates, tasks, t));
  return tables;
}

std::string comparison_text(const Comparison& comparison, const ChosenRates& rates,
                            const std::vector<ComparedTask>& tasks) {
  std::string text;
  for (size_t t = 0; t < tasks.size(); ++t)
    text +=
        fmt::format("{}## {}\n\n{}\n{}\n{}", t == 0 ? "" : "\n", comparison.written.tasks[t].name,
                    table_text(table_of(comparison, rates, tasks, t)),
                    measured_on_text(comparison, tasks[t], t), notices_text(comparison, tasks[t]));
  return text;
}

}  // namespace headlab
