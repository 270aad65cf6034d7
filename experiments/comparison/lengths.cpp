#include "experiments/comparison/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "experiments/comparison/comparison_report.h"

namespace headlab {
namespace {

constexpr double kHalf = 0.5;

const std::string& reported_loss(const Comparison& comparison, size_t task) {
  return compared_metrics(comparison, task).front().name;
}

// Of the arm's trainings of this length; none unless each seed has one, by the code and on the
// device of its whole training.
std::optional<ComparedArm::Length> length_of(const Comparison& comparison, const ComparedArm& arm,
                                             const Stage& whole, const StageEnd& end,
                                             Training training) {
  ComparedArm::Length length;
  for (size_t s = 0; s < comparison.written.seeds.size(); ++s) {
    training.seed = comparison.written.seeds[s];
    const auto& row = end.row(whole, training);
    const auto loss = row.final_metric(reported_loss(comparison, training.task));
    if (row.status.state != PointState::kFinished || !loss || row.code != arm.rows[s].code ||
        row.device != arm.rows[s].device)
      return std::nullopt;
    length.losses.push_back(*loss), length.rows.push_back(row);
  }
  return length;
}

bool is_starred(const ComparedArm& arm, const std::string& metric) {
  const auto loss = arm.metrics.find(metric);
  return loss != arm.metrics.end() && loss->second.reported();
}

bool was_asked_for(const Comparison& comparison, double length) {
  const auto& lengths = comparison.written.lengths;
  return std::find(lengths.begin(), lengths.end(), length) != lengths.end();
}

// Fills `settled`, or says why it is not known, of the arms that are on equal terms and have both
// lengths with all seeds.
void settle_order(const Comparison& comparison, size_t task, ComparedTask& compared) {
  if (solved_rule(comparison, task)) {
    compared.unsettled =
        "Whether the order of the arms has settled is not asked: they are compared by how many "
        "seeds solved the "
        "task.";
    return;
  }
  if (!was_asked_for(comparison, kHalf)) {
    compared.unsettled =
        "It is not known whether the order of the arms has settled: there are no trainings of half "
        "the length "
        "(`lengths: [0.5, 1]`).";
    return;
  }
  LossesBySeed half, full;
  std::vector<std::string> names;
  std::vector<size_t> starred;
  std::optional<size_t> baseline;
  for (size_t a = 0; a < compared.arms.size(); ++a) {
    const auto& arm = compared.arms[a];
    const auto& lengths = arm.at_lengths;
    if (!lengths.count(kHalf) || !lengths.count(1)) continue;
    if (!comparison.arms[task][a].unequal.empty()) continue;
    if (a == comparison.written.baseline) baseline = names.size();
    if (is_starred(arm, reported_loss(comparison, task))) starred.push_back(names.size());
    half.push_back(lengths.at(kHalf).losses), full.push_back(lengths.at(1).losses);
    names.push_back(comparison.written.arms[a].name);
  }
  if (baseline && names.size() >= 2)
    compared.settled = settled_order(half, full, *baseline, starred, names);
  else
    compared.unsettled =
        "It is not known whether the order of the arms has settled: the baseline, or every other "
        "arm, lacks "
        "trainings of half or of the full length.";
}

}  // namespace

void add_lengths(const Comparison& comparison, size_t task, const ChosenRates& rates,
                 const Stage& whole, const StageEnd& end, ComparedTask& compared) {
  for (size_t a = 0; a < compared.arms.size(); ++a) {
    auto& arm = compared.arms[a];
    if (arm.metrics.empty()) continue;
    for (const double share : comparison.written.lengths) {
      auto length =
          length_of(comparison, arm, whole, end, {task, a, *rates[task][a].rate, 0, share});
      if (length)
        arm.at_lengths[share] = std::move(*length);
      else
        arm.notices.push_back(fmt::format(
            "its trainings of {} of the steps are not all finished, or not all by the code and on "
            "the device of the whole ones; they are left out",
            share));
    }
  }
  settle_order(comparison, task, compared);
}

std::string settled_text(const ComparedTask& task) {
  if (!task.settled) return task.unsettled;
  const auto& s = *task.settled;
  if (!s.settled) return fmt::format("The order of the arms has not settled: {}.", s.why);
  return fmt::format(
      "The order of the arms has settled: Kendall's tau of the orders at half and at full length "
      "is {:.2f}, 95 % [{:.2f}, {:.2f}].",
      s.tau, s.low, s.high);
}

TaskTable lengths_table(const Comparison& comparison, const ComparedTask& task, size_t number) {
  const auto& lengths = comparison.written.lengths;
  TaskTable table{.head = {"arm"}, .rows = {}};
  for (const double length : lengths)
    table.head.push_back(
        fmt::format("{} [nat] after {} of the steps", reported_loss(comparison, number), length));
  for (size_t a = 0; a < task.arms.size(); ++a) {
    const auto& at_lengths = task.arms[a].at_lengths;
    if (at_lengths.empty()) continue;
    auto& cells = table.rows.emplace_back(1, comparison.written.arms[a].name);
    for (const double length : lengths) {
      const auto found = at_lengths.find(length);
      cells.push_back(found == at_lengths.end() ? "-"
                                                : spread_cell(spread_of(found->second.losses)));
    }
  }
  return table;
}

nlohmann::ordered_json settled_json(const ComparedTask& task) {
  nlohmann::ordered_json json{{"text", settled_text(task)}, {"settled", nullptr}};
  if (!task.settled) return json;
  const auto& s = *task.settled;
  const auto number = [](double value) {
    return std::isnan(value) ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  json["settled"] = s.settled;
  json["tau"] = number(s.tau);
  json["interval"] = {number(s.low), number(s.high)};
  json["why"] = s.why;
  return json;
}

nlohmann::ordered_json lengths_json(const ComparedArm& arm, const std::string& loss) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [share, length] : arm.at_lengths)
    all.push_back({{"length", share}, {loss, length.losses}, {"runs", runs_json(length.rows)}});
  return all;
}

}  // namespace headlab
