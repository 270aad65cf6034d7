#include "experiments/comparison/comparison_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "experiments/runs/run_files.h"
#include "experiments/runs/sweep_table.h"
#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

// A floor that is written goes with the peak, so that the schedule keeps its shape.
ConfigNode with_rate(const TaskArm& arm, double rate) {
  const auto& train = arm.experiment.train;
  auto config = with_setting(arm.config, "train.lr", write_number(rate));
  if (!train.min_lr || rate == train.lr) return config;
  const double floor = std::stod(fmt::format("{:.12g}", *train.min_lr * (rate / train.lr)));
  return with_setting(config, "train.min_lr", write_number(floor));
}

ConfigNode shortened(ConfigNode config, const ComparisonTask& task, const TaskArm& arm) {
  if (task.choose_at == 1) return config;
  const auto& train = arm.experiment.train;
  const auto shorter = [&](const char* key, int64_t steps) {
    config = with_setting(config, key, write_integer(task.choosing_steps(steps)));
  };
  shorter("train.steps", arm.steps);
  if (train.decay_steps) shorter("train.decay_steps", *train.decay_steps);
  if (const int64_t warmup = train.warmup.of(0); !train.warmup.is_share() && warmup > 0)
    shorter("train.warmup", warmup);
  return config;
}

Stage stage_of(const Comparison& comparison, const std::vector<Training>& trainings, bool whole) {
  const std::string name = whole ? "final" : "choose";
  Stage stage{.sweep = {.folder = {}, .out = comparison.out, .name = name, .points = {}},
              .whole = whole,
              .points = {}};
  std::map<std::filesystem::path, size_t> known;
  for (const auto& training : trainings) {
    const auto& arm = comparison.arms[training.task][training.arm];
    auto config = with_rate(arm, training.rate);
    const auto seed = write_integer(training.seed);
    const auto& written = comparison.written;
    if (!whole) config = shortened(std::move(config), written.tasks[training.task], arm);
    auto point = freeze_point({{"task", write_text(written.tasks[training.task].name)},
                               {"arm", write_text(written.arms[training.arm].name)},
                               {"train.lr", write_number(training.rate)},
                               {"seed", seed}},
                              with_setting(config, "seed", seed), comparison.out);
    const auto [at, fresh] = known.emplace(point.run, stage.sweep.points.size());
    if (fresh) stage.sweep.points.push_back(std::move(point));
    stage.points.emplace(training, at->second);
  }
  place_sweep(stage.sweep, comparison.folder / name);
  return stage;
}

// The mean loss of a rate, or why it has none.
struct Judged {
  std::optional<double> loss;
  std::string failure;
};

Judged judge(const Stage& stage, const StageEnd& end, Training training,
             const std::vector<int64_t>& seeds) {
  double sum = 0;
  for (const auto seed : seeds) {
    training.seed = seed;
    const auto& row = end.row(stage, training);
    const bool diverged = row.status.state == PointState::kFailed && row.status.code == kDiverged;
    if (row.status.state != PointState::kFinished && !diverged)
      return {{}, fmt::format("{} is {}", row.label, row.state_text())};
    const auto loss = row.final_loss();
    if (diverged || !loss) return {};
    sum += *loss;
  }
  return {sum / static_cast<double>(seeds.size()), {}};
}

ChosenRate choose(const Comparison& comparison, const Stage& stage, const StageEnd& end,
                  Training training) {
  const auto& rates = comparison.written.tasks[training.task].rates;
  ChosenRate chosen;
  std::optional<double> least;
  std::set<std::string> devices;
  for (const double rate : rates) {
    training.rate = rate;
    for (const auto seed : comparison.written.choose_seeds)
      devices.insert(end.row(stage, {training.task, training.arm, rate, seed}).device);
    const auto judged = judge(stage, end, training, comparison.written.choose_seeds);
    if (!judged.failure.empty()) return {.rate = {}, .failure = judged.failure};
    chosen.tried.push_back({rate, judged.loss});
    if (!judged.loss || (least && *judged.loss >= *least)) continue;
    least = judged.loss;
    chosen.rate = rate;
  }
  if (devices.size() > 1)
    return {.rate = {},
            .failure = fmt::format("its short trainings ran on different devices or in different "
                                   "precisions ({}); tag=WORD trains all anew",
                                   fmt::join(devices, ", "))};
  if (!chosen.rate) chosen.failure = "it diverges at every rate";
  chosen.at_edge = chosen.rate == rates.front() || chosen.rate == rates.back();
  return chosen;
}

// 0 where every point is finished, or diverged where that is an answer; 75 where some can go on;
// else the code of the first that failed.
int code_of(const std::vector<SweepRow>& rows, bool divergence_is_answer) {
  int code = kDone;
  for (const auto& row : rows) {
    const bool failed = row.status.state == PointState::kFailed;
    if (failed && row.status.code == kDiverged && divergence_is_answer) continue;
    if (failed) return row.status.code;
    if (row.status.state != PointState::kFinished) code = kResumable;
  }
  return code;
}

StageEnd end_of(const Stage& stage, const std::vector<PointStatus>& points) {
  StageEnd end{.summary = summary_of(stage.sweep, points)};
  end.code = code_of(end.summary.rows, !stage.whole);
  return end;
}

// Those that are chosen already; before that the first of each task.
ChosenRates likely_rates(const Comparison& comparison, const Stage& choosing,
                         const StageEnd& stands) {
  const auto& written = comparison.written;
  ChosenRates rates(written.tasks.size(), std::vector<ChosenRate>(written.arms.size()));
  if (stands.code == kDone) rates = chosen_rates(comparison, choosing, stands);
  for (size_t task = 0; task < rates.size(); ++task)
    for (size_t arm = 0; arm < rates[task].size(); ++arm)
      if (comparison.arms[task][arm].takes_part() && !rates[task][arm].rate)
        rates[task][arm].rate = written.tasks[task].rates.front();
  return rates;
}

// The trainings that choose an arm's rate, whose whole ones cost `whole`.
ConfigCost choice_of(const ComparisonTask& task, const ConfigCost& whole, const Stage& choosing,
                     const StageEnd& stands, const Training& of) {
  auto cost = whole;
  cost.points = cost.finished = 0;
  cost.steps = task.choosing_steps(whole.steps);
  const double share = static_cast<double>(cost.steps) / static_cast<double>(whole.steps);
  cost.flops *= share, cost.seconds *= share;
  for (const auto& [training, point] : choosing.points) {
    if (training.task != of.task || training.arm != of.arm) continue;
    ++cost.points;
    if (stands.summary.rows[point].status.state != PointState::kWaiting) ++cost.finished;
  }
  return cost;
}

}  // namespace

Stage choosing_stage(const Comparison& comparison) {
  const auto& written = comparison.written;
  std::vector<Training> trainings;
  for (size_t task = 0; task < written.tasks.size(); ++task)
    for (size_t arm = 0; arm < written.arms.size(); ++arm)
      if (comparison.arms[task][arm].takes_part() && ComparisonFile::chooses(written.tasks[task]))
        for (const double rate : written.tasks[task].rates)
          for (const auto seed : written.choose_seeds) trainings.push_back({task, arm, rate, seed});
  return stage_of(comparison, trainings, /*whole=*/false);
}

ChosenRates chosen_rates(const Comparison& comparison, const Stage& choosing, const StageEnd& end) {
  const auto& written = comparison.written;
  ChosenRates rates(written.tasks.size(), std::vector<ChosenRate>(written.arms.size()));
  for (size_t task = 0; task < written.tasks.size(); ++task)
    for (size_t arm = 0; arm < written.arms.size(); ++arm) {
      if (!comparison.arms[task][arm].takes_part()) continue;
      if (ComparisonFile::chooses(written.tasks[task]))
        rates[task][arm] = choose(comparison, choosing, end, {.task = task, .arm = arm});
      else
        rates[task][arm].rate = written.tasks[task].rates.front();
    }
  return rates;
}

Stage final_stage(const Comparison& comparison, const ChosenRates& rates) {
  std::vector<Training> trainings;
  for (size_t task = 0; task < rates.size(); ++task)
    for (size_t arm = 0; arm < rates[task].size(); ++arm)
      for (const auto seed : comparison.written.seeds)
        if (rates[task][arm].rate) trainings.push_back({task, arm, *rates[task][arm].rate, seed});
  return stage_of(comparison, trainings, /*whole=*/true);
}

StageEnd as_it_stands(const Stage& stage) {
  std::vector<PointStatus> points(stage.sweep.points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    const auto status = read_status(stage.sweep.points[i].run);
    if (status && status->state == RunState::kFinished)
      points[i].state = PointState::kFinished;
    else if (status && status->state == RunState::kDiverged)
      points[i] = {.state = PointState::kFailed, .code = kDiverged, .reason = status->reason};
  }
  return end_of(stage, points);
}

StageEnd run_stage(const Stage& stage, const SweepOrders& orders) {
  write_points(stage.sweep);
  auto end = end_of(stage, run_shown(stage.sweep, orders).first);
  write_summary(stage.sweep, end.summary);
  return end;
}

Stage likely_final_stage(const Comparison& comparison) {
  const auto choosing = choosing_stage(comparison);
  return final_stage(comparison, likely_rates(comparison, choosing, as_it_stands(choosing)));
}

std::vector<ConfigCost> costs_of(const Comparison& comparison, const SweepOrders& orders) {
  const auto choosing = choosing_stage(comparison);
  const auto stands = as_it_stands(choosing);
  const auto whole = likely_final_stage(comparison);
  auto costs = costs_of(whole.sweep, orders);
  std::vector<ConfigCost> all;
  for (const auto& [training, point] : whole.points) {
    if (training.seed != comparison.written.seeds.front()) continue;
    const auto label = whole.sweep.points[point].label();
    const auto cost = std::find_if(costs.begin(), costs.end(),
                                   [&](const ConfigCost& one) { return one.label == label; });
    if (cost == costs.end()) continue;  // that of an arm with the same settings stands for both
    const auto& task = comparison.written.tasks[training.task];
    const auto choice = choice_of(task, *cost, choosing, stands, training);
    cost->label = fmt::format("{} {}", task.name, comparison.written.arms[training.arm].name);
    if (choice.points > 0) all.push_back(choice);
    if (choice.points > 0) all.back().label = cost->label + ", to choose";
    all.push_back(*cost);
  }
  return all;
}

}  // namespace headlab
