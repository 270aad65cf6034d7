#include "experiments/comparison/references.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/runs/run_data.h"

namespace headlab {
namespace {

// Of a metric under its name in logs.
std::optional<double> value_of(const Reference& reference, const std::string& metric) {
  return reference.value(metric.substr(metric.find('/') + 1));
}

const FinalMetric* judging_metric(const std::vector<FinalMetric>& metrics) {
  const auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [](const FinalMetric& one) { return one.higher_is_better; });
  if (found != metrics.end()) return &*found;
  return metrics.empty() ? nullptr : &metrics.front();
}

// Whether a column is of the metric's own values: "val/loss [nat], mean ± sd".
bool is_column_of(const std::string& title, const std::string& metric) {
  return title.starts_with(metric + ",") || title.starts_with(metric + " [");
}

}  // namespace

double reached_by_guesses(double chance, int64_t targets) {
  constexpr double kOfNormal = 1.959964;  // 97.5 % of a normal distribution lie below
  return chance + kOfNormal * std::sqrt(chance * (1 - chance) / static_cast<double>(targets));
}

std::optional<bool> above_chance(const ComparedArm& arm, const std::vector<FinalMetric>& metrics,
                                 const References& references) {
  const auto* judge = judging_metric(metrics);
  if (!judge) return std::nullopt;
  const auto* guess =
      references.guess(judge->name.substr(judge->name.find('/') + 1), judge->higher_is_better);
  if (!guess) return std::nullopt;
  const auto chance = value_of(*guess, judge->name);
  const auto found = arm.metrics.find(judge->name);
  if (!chance || found == arm.metrics.end()) return std::nullopt;
  const double mean = found->second.spread.mean;
  const auto interval = t_interval(found->second.spread).value_or(Interval{mean, mean});
  if (!judge->higher_is_better) return interval.high < *chance;
  return interval.low > reached_by_guesses(*chance, references.tokens);
}

void hold_against_references(const Comparison& comparison, size_t task, ComparedTask& compared) {
  const auto& metrics = compared_metrics(comparison, task);
  const auto data = open_training_data(comparison.baseline(task).experiment);
  compared.references = references_of(*data, comparison.baseline(task).measured_on());
  for (auto& arm : compared.arms) {
    arm.above_chance = above_chance(arm, metrics, compared.references);
    if (arm.above_chance.value_or(true)) continue;
    arm.reach = {};
    for (auto& [name, metric] : arm.metrics) metric.at_chance = true;
    arm.notices.emplace_back("it is not above chance: its means have no star, and it no speedup");
  }
  for (const auto& one : compared.references.all)
    compared.notices.push_back(fmt::format("{}: {}", one.name, one.how));
}

std::string chance_text(const ComparedTask& task) {
  const auto* guess = task.references.find(kChance);
  const auto is = [&](bool wanted) {
    return [wanted](const ComparedArm& arm) { return arm.above_chance == wanted; };
  };
  if (!guess || std::any_of(task.arms.begin(), task.arms.end(), is(true)) ||
      std::none_of(task.arms.begin(), task.arms.end(), is(false)))
    return "";
  return fmt::format(
      "No arm is above chance ({}): the differences below are of what was not "
      "learned.\n\n",
      guess->how);
}

std::vector<std::vector<std::string>> reference_rows(const std::vector<std::string>& head,
                                                     const std::vector<FinalMetric>& metrics,
                                                     const References& references) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& one : references.all) {
    std::vector<std::string> cells{one.name};
    for (size_t column = 1; column < head.size(); ++column) {
      const auto metric = std::find_if(metrics.begin(), metrics.end(), [&](const auto& each) {
        return is_column_of(head[column], each.name);
      });
      const auto value = metric == metrics.end() ? std::nullopt : value_of(one, metric->name);
      cells.push_back(value ? fmt::format("{:.4f}", *value) : "-");
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

nlohmann::ordered_json references_of_task_json(const References& references) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& one : references.all) {
    auto& entry = json[one.name];
    for (const auto& metric : one.values)
      entry[metric_name(references.split, metric.name)] = metric.value;
    entry["comment"] = one.how;
  }
  return json;
}

}  // namespace headlab
