#include "experiments/comparison/rate_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

// A wider stage names its first points as the stage before did.
std::vector<Training> in_order_of_points(const Stage& stage) {
  std::vector<std::pair<size_t, Training>> ordered;
  for (const auto& [training, point] : stage.points) ordered.emplace_back(point, training);
  std::sort(ordered.begin(), ordered.end());
  std::vector<Training> trainings;
  for (const auto& [point, training] : ordered) trainings.push_back(training);
  return trainings;
}

// What a training that chooses rates has ended with.
struct Judged {
  std::optional<double> loss = {};  // none: what follows says why
  std::string lost = {};            // of the rate: it is no better for it
  std::string failure = {};         // of the training: the arm has no rate
};

Judged judge(const SweepRow& row) {
  const auto& status = row.status;
  if (status.state == PointState::kFailed && status.code == kDiverged)
    return {.lost = "it diverged"};
  if (status.state == PointState::kGivenUp) return {.lost = "it was given up: " + status.reason};
  if (status.state != PointState::kFinished)
    return {.failure = fmt::format("{} is {}", row.label, row.state_text())};
  const auto loss = row.final_loss();
  if (!loss) return {.lost = "its loss is not finite"};
  return {.loss = loss};
}

// What the trainings of an arm that choose its rate have ended with.
struct Choice {
  TriedRates rates;                     // by k; of a list by place
  std::map<int64_t, std::string> lost;  // why
  std::map<int64_t, double> numbers;    // the rates
  std::set<std::string> devices;
  std::string failure;  // "": none
};

// The rates of a task that have a place in a search, or in the list.
std::map<int64_t, double> places_of(const ComparisonTask& task) {
  std::map<int64_t, double> places;
  if (task.search)
    for (int64_t k = -task.search->most; k <= task.search->most; ++k)
      places[k] = task.search->rate(k);
  for (size_t i = 0; !task.search && i < task.rates.size(); ++i)
    places[static_cast<int64_t>(i)] = task.rates[i];
  return places;
}

Choice choice_so_far(const Comparison& comparison, const Stage& stage, const StageEnd& end,
                     size_t task, size_t arm) {
  Choice choice;
  const auto& written = comparison.written;
  const auto& seeds = written.choose_seeds;
  for (const auto& [k, rate] : places_of(written.tasks[task]))
    for (size_t seed = 0; seed < seeds.size(); ++seed) {
      const Training training{task, arm, rate, seeds[seed], written.tasks[task].choose_at};
      if (!stage.points.count(training)) continue;
      const auto& row = end.row(stage, training);
      const auto judged = judge(row);
      if (!judged.failure.empty()) choice.failure = judged.failure;
      choice.devices.insert(row.device);
      auto& tried = choice.rates[k];
      tried.losses.resize(seeds.size());
      tried.losses[seed] = judged.loss;
      choice.numbers[k] = rate;
      if (judged.lost.empty()) continue;
      tried.lost = true;
      choice.lost[k] = judged.lost;
    }
  choice.devices.erase("");  // of a training that was given up nothing is known
  return choice;
}

ChosenRate::Tried tried_of(const Choice& choice, int64_t k) {
  const auto& rate = choice.rates.at(k);
  const auto lost = choice.lost.find(k);
  return {.rate = choice.numbers.at(k),
          .loss = rate.mean(),
          .seeds = std::count_if(rate.losses.begin(), rate.losses.end(),
                                 [](const auto& loss) { return loss.has_value(); }),
          .lost = lost == choice.lost.end() ? "" : lost->second};
}

ChosenRate chosen_of(const Choice& choice) {
  if (!choice.failure.empty()) return {.rate = {}, .failure = choice.failure};
  if (choice.devices.size() > 1)
    return {.rate = {},
            .failure = fmt::format("the trainings that choose its rate ran on different devices or "
                                   "in different precisions ({}); tag=WORD trains all anew",
                                   fmt::join(choice.devices, ", "))};
  ChosenRate chosen;
  for (const auto& [k, rate] : choice.rates) chosen.tried.push_back(tried_of(choice, k));
  const auto best = best_rate(choice.rates);
  if (!best) {
    chosen.failure = "no training ends well at any rate that was tried";
    return chosen;
  }
  chosen.rate = choice.numbers.at(*best);
  chosen.at_edge = is_at_edge(choice.rates);
  if (const auto next = runner_up(choice.rates)) chosen.runner_up = tried_of(choice, *next);
  return chosen;
}

}  // namespace

Stage choosing_stage(const Comparison& comparison) {
  const auto& written = comparison.written;
  std::vector<Training> trainings;
  for (size_t t = 0; t < written.tasks.size(); ++t) {
    const auto& task = written.tasks[t];
    for (size_t arm = 0; arm < written.arms.size(); ++arm) {
      if (!comparison.arms[t][arm].takes_part() || !task.chooses()) continue;
      if (task.search)
        for (const auto& [k, seed] : next_trainings(*task.search, {}, 0))
          trainings.push_back(
              {t, arm, task.search->rate(k), written.choose_seeds[seed], task.choose_at});
      for (const double rate : task.rates)
        for (const auto seed : written.choose_seeds)
          trainings.push_back({t, arm, rate, seed, task.choose_at});
    }
  }
  return stage_of(comparison, trainings, /*whole=*/false);
}

std::optional<Stage> wider_stage(const Comparison& comparison, const Stage& choosing,
                                 const StageEnd& end) {
  const auto& written = comparison.written;
  auto trainings = in_order_of_points(choosing);
  const size_t before = trainings.size();
  for (size_t t = 0; t < written.tasks.size(); ++t) {
    const auto& task = written.tasks[t];
    for (size_t arm = 0; task.search && arm < written.arms.size(); ++arm) {
      if (!comparison.arms[t][arm].takes_part()) continue;
      const auto choice = choice_so_far(comparison, choosing, end, t, arm);
      if (!choice.failure.empty()) continue;
      for (const auto& [k, seed] :
           next_trainings(*task.search, choice.rates, written.choose_seeds.size()))
        trainings.push_back(
            {t, arm, task.search->rate(k), written.choose_seeds[seed], task.choose_at});
    }
  }
  if (trainings.size() == before) return std::nullopt;
  return stage_of(comparison, trainings, /*whole=*/false);
}

ChosenRates chosen_rates(const Comparison& comparison, const Stage& choosing, const StageEnd& end) {
  const auto& written = comparison.written;
  ChosenRates rates(written.tasks.size(), std::vector<ChosenRate>(written.arms.size()));
  for (size_t task = 0; task < written.tasks.size(); ++task)
    for (size_t arm = 0; arm < written.arms.size(); ++arm) {
      if (!comparison.arms[task][arm].takes_part()) continue;
      if (written.tasks[task].chooses())
        rates[task][arm] = chosen_of(choice_so_far(comparison, choosing, end, task, arm));
      else
        rates[task][arm].rate = written.tasks[task].first_rate();
    }
  return rates;
}

std::pair<Stage, StageEnd> choosing_as_it_stands(const Comparison& comparison) {
  auto stage = choosing_stage(comparison);
  for (;;) {
    auto stands = as_it_stands(stage);
    auto wider = stands.code == kResumable ? std::nullopt : wider_stage(comparison, stage, stands);
    if (!wider) return {std::move(stage), std::move(stands)};
    stage = std::move(*wider);
  }
}

Stage final_stage(const Comparison& comparison, const ChosenRates& rates) {
  std::vector<Training> trainings;
  for (size_t task = 0; task < rates.size(); ++task)
    for (size_t arm = 0; arm < rates[task].size(); ++arm)
      for (const auto seed : comparison.written.seeds)
        for (const double length : comparison.written.lengths)
          if (rates[task][arm].rate)
            trainings.push_back({task, arm, *rates[task][arm].rate, seed, length});
  return stage_of(comparison, trainings, /*whole=*/true);
}

}  // namespace headlab
