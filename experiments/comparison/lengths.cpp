#include "experiments/comparison/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace headlab {
namespace {

constexpr double kHalf = 0.5;

const std::string& reported_loss(const Comparison& comparison, size_t task) {
  return compared_metrics(comparison, task).front().name;
}

std::vector<double> losses_after(const Stage& whole, const StageEnd& end, Training training,
                                 const Comparison& comparison) {
  std::vector<double> losses;
  for (const auto seed : comparison.written.seeds) {
    training.seed = seed;
    const auto& row = end.row(whole, training);
    const auto loss = row.final_metric(reported_loss(comparison, training.task));
    if (row.status.state != PointState::kFinished || !loss) return {};
    losses.push_back(*loss);
  }
  return losses;
}

bool is_starred(const ComparedArm& arm, const std::string& metric) {
  const auto loss = arm.metrics.find(metric);
  return loss != arm.metrics.end() && loss->second.reported();
}

// Of the arms that have both lengths with all seeds.
std::optional<Settled> settled_of(const Comparison& comparison, size_t number,
                                  const ComparedTask& task) {
  LossesBySeed half, full;
  std::vector<std::string> names;
  std::vector<size_t> starred;
  std::optional<size_t> baseline;
  for (size_t a = 0; a < task.arms.size(); ++a) {
    const auto& lengths = task.arms[a].at_lengths;
    if (!lengths.count(kHalf) || !lengths.count(1)) continue;
    if (a == comparison.written.baseline) baseline = names.size();
    if (is_starred(task.arms[a], reported_loss(comparison, number))) starred.push_back(names.size());
    half.push_back(lengths.at(kHalf)), full.push_back(lengths.at(1));
    names.push_back(comparison.written.arms[a].name);
  }
  if (!baseline || names.size() < 2) return std::nullopt;
  return settled_order(half, full, *baseline, starred, names);
}

}  // namespace

void add_lengths(const Comparison& comparison, size_t task, const ChosenRates& rates,
                 const Stage& whole, const StageEnd& end, ComparedTask& compared) {
  const auto& written = comparison.written;
  for (size_t a = 0; a < compared.arms.size(); ++a) {
    auto& arm = compared.arms[a];
    if (arm.metrics.empty()) continue;
    for (const double length : written.lengths) {
      const auto losses =
          losses_after(whole, end, {task, a, *rates[task][a].rate, 0, length}, comparison);
      if (!losses.empty()) arm.at_lengths[length] = losses;
    }
  }
  compared.settled = settled_of(comparison, task, compared);
}

std::string settled_text(const ComparedTask& task) {
  if (!task.settled)
    return "It is not known whether the order of the arms has settled: there are no trainings of "
           "half the length (`lengths: [0.5, 1]`).\n\n";
  const auto& s = *task.settled;
  if (!s.settled) return fmt::format("The order of the arms has not settled: {}.\n\n", s.why);
  return fmt::format(
      "The order of the arms has settled: Kendall's tau of the orders at half and at full length "
      "is "
      "{:.2f}, 95 % [{:.2f}, {:.2f}].\n\n",
      s.tau, s.low, s.high);
}

std::string lengths_text(const Comparison& comparison, const ComparedTask& task, size_t number) {
  const auto& lengths = comparison.written.lengths;
  if (lengths.size() < 2) return "";
  std::string head = "| arm |", line = "|---|", rows;
  for (const double length : lengths) {
    head += fmt::format(" {} [nat] after {} of the steps |", reported_loss(comparison, number), length);
    line += "--:|";
  }
  for (size_t a = 0; a < task.arms.size(); ++a) {
    if (task.arms[a].at_lengths.empty()) continue;
    rows += fmt::format("| {} |", comparison.written.arms[a].name);
    for (const double length : lengths) {
      const auto found = task.arms[a].at_lengths.find(length);
      if (found == task.arms[a].at_lengths.end()) {
        rows += " - |";
        continue;
      }
      const auto spread = spread_of(found->second);
      rows += fmt::format(" {:.4f} ± {:.4f} |", spread.mean, spread.deviation.value_or(0));
    }
    rows += "\n";
  }
  return fmt::format(
      "\nEach length is a training of its own, whose schedule ends there.\n\n{}\n{}\n{}", head,
      line, rows);
}

nlohmann::ordered_json settled_json(const ComparedTask& task) {
  if (!task.settled) return nullptr;
  const auto& s = *task.settled;
  const auto number = [](double value) {
    return std::isnan(value) ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  return {{"settled", s.settled},
          {"tau", number(s.tau)},
          {"interval", {number(s.low), number(s.high)}},
          {"why", s.why}};
}

nlohmann::ordered_json lengths_json(const ComparedArm& arm, const std::string& loss) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [length, losses] : arm.at_lengths)
    all.push_back({{"length", length}, {loss, losses}});
  return all;
}

}  // namespace headlab
