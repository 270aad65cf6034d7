#include "experiments/comparison/comparison_costs.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/comparison/rate_choice.h"
#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

// Those that are chosen already; before that the first of each task.
ChosenRates likely_rates(const Comparison& comparison, const Stage& choosing,
                         const StageEnd& stands) {
  const auto& written = comparison.written;
  ChosenRates rates(written.tasks.size(), std::vector<ChosenRate>(written.arms.size()));
  if (stands.code == kDone) rates = chosen_rates(comparison, choosing, stands);
  for (size_t task = 0; task < rates.size(); ++task)
    for (size_t arm = 0; arm < rates[task].size(); ++arm)
      if (comparison.arms[task][arm].takes_part() && !rates[task][arm].rate)
        rates[task][arm].rate = written.tasks[task].first_rate();
  return rates;
}

// A training of a share of the steps; no points yet.
ConfigCost share_of_cost(const ConfigCost& whole, double share) {
  auto cost = whole;
  cost.points = cost.finished = 0;
  cost.steps = ComparisonTask::share_of(share, whole.steps);
  const double exact = static_cast<double>(cost.steps) / static_cast<double>(whole.steps);
  cost.flops *= exact, cost.seconds *= exact;
  return cost;
}

// The trainings of an arm that are compared after a share of the steps.
ConfigCost shorter_cost(const ConfigCost& whole, const Stage& stage, const StageEnd& stands,
                        const Training& of) {
  auto cost = share_of_cost(whole, of.length);
  for (const auto& [training, point] : stage.points) {
    if (training.task != of.task || training.arm != of.arm || training.length != of.length)
      continue;
    ++cost.points;
    if (stands.summary.rows[point].status.state == PointState::kFinished) ++cost.finished;
  }
  return cost;
}

// The trainings that choose an arm's rate, whose whole ones cost `whole`; of a search that has not
// ended the most that it may ask for.
ConfigCost choice_of(const Comparison& comparison, const ConfigCost& whole, const Stage& choosing,
                     const StageEnd& stands, const Training& of) {
  const auto& task = comparison.written.tasks[of.task];
  auto cost = share_of_cost(whole, task.choose_at);
  for (const auto& [training, point] : choosing.points) {
    if (training.task != of.task || training.arm != of.arm) continue;
    ++cost.points;
    if (stands.summary.rows[point].status.state != PointState::kWaiting) ++cost.finished;
  }
  const auto others = std::ssize(comparison.written.choose_seeds) - 1;
  if (task.search && stands.code == kResumable)
    cost.points = std::max(cost.points, task.search->most + 3 * others);
  return cost;
}

// Of a stage that is compared: its trainings of the whole length.
Stage whole_lengths_of(const Comparison& comparison, const Stage& stage) {
  std::vector<Training> trainings;
  for (const auto& [training, point] : stage.points)
    if (training.length == 1) trainings.push_back(training);
  return stage_of(comparison, trainings, /*whole=*/true);
}

}  // namespace

Stage likely_final_stage(const Comparison& comparison) {
  const auto [choosing, stands] = choosing_as_it_stands(comparison);
  return final_stage(comparison, likely_rates(comparison, choosing, stands));
}

std::vector<ConfigCost> costs_of(const Comparison& comparison, const SweepOrders& orders) {
  const auto [choosing, stands] = choosing_as_it_stands(comparison);
  const auto whole = final_stage(comparison, likely_rates(comparison, choosing, stands));
  const auto whole_stands = as_it_stands(whole);
  // Shorter trainings cost their share of these.
  auto costs = costs_of(whole_lengths_of(comparison, whole).sweep, orders);
  std::vector<ConfigCost> all;
  for (const auto& [training, unused] : whole.points) {
    if (training.seed != comparison.written.seeds.front()) continue;
    auto longest = training;
    longest.length = 1;
    const auto label = whole.sweep.points[whole.points.at(longest)].label();
    const auto cost = std::find_if(costs.begin(), costs.end(),
                                   [&](const ConfigCost& one) { return one.label == label; });
    if (cost == costs.end()) continue;  // that of an arm with the same settings stands for both
    const auto& task = comparison.written.tasks[training.task];
    const auto name = fmt::format("{} {}", task.name, comparison.written.arms[training.arm].name);
    if (training.length != 1) {
      all.push_back(shorter_cost(*cost, whole, whole_stands, training));
      all.back().label = fmt::format("{}, length {}", name, training.length);
      continue;
    }
    cost->label = name;
    const auto choice = choice_of(comparison, *cost, choosing, stands, training);
    if (choice.points > 0) {
      all.push_back(choice);
      const bool open = task.search && stands.code == kResumable;
      all.back().label = cost->label + (open ? ", to choose, at most" : ", to choose");
    }
    all.push_back(*cost);
  }
  return all;
}

}  // namespace headlab
