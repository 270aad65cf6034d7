// The report of a comparison as Markdown.
#include <fmt/format.h>

#include "experiments/comparison/comparison_report.h"
#include "experiments/comparison/lengths.h"
#include "experiments/comparison/references.h"
#include "experiments/text/duration.h"
#include "experiments/text/table.h"
#include "experiments/text/with_commas.h"

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

// The loss has its unit alone: that less of it is better needs no word.
std::string title_of(const FinalMetric& metric) {
  return metric.name + (metric.units == "1" ? "" : fmt::format(" [{}]", metric.units)) +
         (metric.higher_is_better ? ", higher is better" : "");
}

// Of tasks that are solved or not the means are told, and the tests are those of what was solved.
Cells head_cells(const Comparison& comparison, size_t task) {
  const auto& baseline = comparison.written.arms[comparison.written.baseline].name;
  const auto rule = solved_rule(comparison, task);
  Cells cells{"arm", "parameters", "d_ff", "head_dim", "rate"};
  for (const auto& metric : compared_metrics(comparison, task)) {
    cells.push_back(title_of(metric) + ", mean ± sd");
    if (!rule)
      cells.insert(cells.end(),
                   {fmt::format("less {}'s [95 %]", baseline), "p", "p, Holm", "could be told"});
  }
  if (rule)
    cells.insert(cells.end(),
                 {"seeds that solved it", "p, Fisher", "p, Fisher and Holm",
                  "updates until solved, median", "p, log-rank", "p, log-rank and Holm"});
  cells.insert(cells.end(), {"effective speedup", validation_loss_name() + " at equal time [nat]",
                             "time", "entropy [nat]", "largest logit", "first-token share",
                             "heads that survive pruning"});
  return cells;
}

std::string starred(const std::optional<double>& p, bool reported) {
  return p_cell(p) + (reported ? " *" : "");
}

void add_metric_cells(Cells& cells, const ComparedMetric& metric) {
  cells.push_back(spread_cell(metric.spread));
  if (metric.of_two_humps) return;
  if (!metric.difference) {
    cells.insert(cells.end(), 4, kNoCell);
    return;
  }
  const auto& difference = *metric.difference;
  cells.push_back(difference.interval
                      ? fmt::format("{:+.4f} [{:+.4f}, {:+.4f}]", difference.mean,
                                    difference.interval->low, difference.interval->high)
                      : fmt::format("{:+.4f}", difference.mean));
  cells.push_back(p_cell(difference.p));
  cells.push_back(starred(metric.corrected, metric.reported()));
  cells.push_back(cell(metric.tellable, 4));
}

void add_test_cells(Cells& cells, const std::optional<ComparedTest>& test) {
  cells.push_back(test ? p_cell(test->p) : kNoCell);
  cells.push_back(test ? starred(test->corrected, test->reported()) : kNoCell);
}

void add_solved_cells(Cells& cells, const SolvedArm& arm) {
  cells.push_back(fmt::format("{} of {}", arm.count(), arm.solved.size()));
  add_test_cells(cells, arm.share);
  cells.push_back(arm.median ? with_commas(static_cast<int64_t>(*arm.median))
                             : fmt::format("> {}", with_commas(arm.last_update())));
  add_test_cells(cells, arm.sooner);
}

void add_metrics_of(Cells& cells, const TableRow& row) {
  const auto& arm = row.compared();
  const bool by_solved = solved_rule(row.comparison, row.task).has_value();
  for (const auto& measure : compared_metrics(row.comparison, row.task)) {
    if (const auto metric = arm.metrics.find(measure.name); metric != arm.metrics.end()) {
      add_metric_cells(cells, metric->second);
      continue;
    }
    cells.push_back(arm.missing.empty() ? kNoCell : "- (" + arm.missing + ")");
    if (!by_solved) cells.insert(cells.end(), 4, kNoCell);
  }
  if (arm.solved)
    add_solved_cells(cells, *arm.solved);
  else if (by_solved)
    cells.insert(cells.end(), 6, kNoCell);
}

Cells row_cells(const TableRow& row) {
  const auto& arm = row.compared();
  const auto& sized = row.sized();
  Cells cells{row.name()};
  if (sized.takes_part()) {
    const auto& rate = row.rates[row.task][row.arm];
    const bool by_head_dim = row.comparison.written.tasks[row.task].match == Match::kHeadDim;
    const auto adapted = [&](bool this_one, int64_t width) {
      return fmt::format("{}{}", width, sized.adapted && this_one ? " (adapted)" : "");
    };
    cells.push_back(
        fmt::format("{} ({:+.1f} %)", with_commas(sized.parameters), 100 * sized.excess));
    cells.push_back(adapted(!by_head_dim, sized.hidden_width()));
    cells.push_back(adapted(by_head_dim, sized.head_dim()));
    cells.push_back(rate.rate ? fmt::format("{}{}", *rate.rate, rate.at_edge ? " (edge)" : "")
                              : kNoCell);
  } else {
    cells.insert(cells.end(), 4, kNoCell);
  }
  add_metrics_of(cells, row);
  cells.insert(
      cells.end(),
      {speedup_cell(arm), cell(arm.equal_time, 4),
       arm.wall_s ? duration_text(*arm.wall_s) : kNoCell, cell(arm.heads.entropy, 2),
       cell(arm.heads.max_logit, 1), cell(arm.heads.first_token, 3),
       arm.surviving ? fmt::format("{:.1f} of {}", *arm.surviving, arm.built_heads) : kNoCell});
  return cells;
}

TaskTable table_of(const Comparison& comparison, const ChosenRates& rates,
                   const std::vector<ComparedTask>& tasks, size_t task) {
  TaskTable table{.head = head_cells(comparison, task), .rows = {}};
  for (size_t arm = 0; arm < tasks[task].arms.size(); ++arm)
    if (!comparison.arms[task][arm].left_out)
      table.rows.push_back(row_cells({comparison, rates, tasks, task, arm}));
  for (auto& row :
       reference_rows(table.head, compared_metrics(comparison, task), tasks[task].references))
    table.rows.push_back(std::move(row));
  return table;
}

std::string table_text(const TaskTable& written) {
  std::vector<Column> columns;
  for (const auto& title : written.head)
    columns.push_back({.title = title, .is_text = columns.empty()});
  Table table(std::move(columns));
  for (const auto& row : written.rows) table.add({row.begin(), row.end()});
  return table.markdown();
}

std::string lengths_text(const Comparison& comparison, const ComparedTask& task, size_t number) {
  if (comparison.written.lengths.size() < 2) return "";
  return "\nEach length is a training of its own, whose schedule ends there.\n\n" +
         table_text(lengths_table(comparison, task, number));
}

}  // namespace

std::vector<TaskTable> comparison_tables(const Comparison& comparison, const ChosenRates& rates,
                                         const std::vector<ComparedTask>& tasks) {
  std::vector<TaskTable> tables;
  for (size_t t = 0; t < tasks.size(); ++t) tables.push_back(table_of(comparison, rates, tasks, t));
  return tables;
}

std::string comparison_text(const Comparison& comparison, const ChosenRates& rates,
                            const std::vector<ComparedTask>& tasks,
                            const std::vector<TaskTable>& tables) {
  std::string text;
  for (size_t t = 0; t < tasks.size(); ++t)
    text += fmt::format(
        "{}## {}\n\n{}{}\n{}\n{}{}", t == 0 ? "" : "\n", comparison.written.tasks[t].name,
        chance_text(tasks[t]), settled_text(tasks[t]) + "\n\n", table_text(tables[t]),
        notes_text(comparison, rates[t], tasks[t], t), lengths_text(comparison, tasks[t], t));
  return text;
}

}  // namespace headlab
