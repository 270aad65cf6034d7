#include "experiments/comparison/comparison_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/errors.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/sweeps/sweep_summary.h"
#include "experiments/sweeps/sweep_table.h"
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

// The first `share` of the steps as a training of its own, whose warmup and decay are as much
// shorter.
ConfigNode shortened(ConfigNode config, double share, const TaskArm& arm) {
  if (share == 1) return config;
  const auto& train = arm.experiment.train;
  const auto shorter = [&](const char* key, int64_t steps) {
    config = with_setting(config, key, write_integer(ComparisonTask::share_of(share, steps)));
  };
  shorter("train.steps", arm.steps);
  if (train.decay_steps) shorter("train.decay_steps", *train.decay_steps);
  if (const int64_t warmup = train.warmup.of(0); !train.warmup.is_share() && warmup > 0)
    shorter("train.warmup", warmup);
  return config;
}

// 0 where every point is finished, or diverged where that is an answer; 75 where some can go on;
// else the code of the first that failed.
int code_of(const std::vector<SweepRow>& rows, bool divergence_is_answer) {
  int code = kDone;
  for (const auto& row : rows) {
    const bool failed = row.status.state == PointState::kFailed;
    if (failed && row.status.code == kDiverged && divergence_is_answer) continue;
    if (row.status.state == PointState::kGivenUp) continue;
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

// A training that diverged has chosen, unless other code may do better.
std::optional<PointStatus> diverged_before(const FrozenPoint& point) {
  const auto status = read_status(point.run);
  if (!status || status->state != RunState::kDiverged) return std::nullopt;
  const auto manifest = read_manifest(point.run);
  if (manifest.is_object() &&
      !kinds_that_differ(manifest.value("code", nlohmann::ordered_json())).empty())
    return std::nullopt;
  return PointStatus{.state = PointState::kFailed, .code = kDiverged, .reason = status->reason};
}

constexpr double kMargin = 0.05;  // of what the other had lost

// Those that there are; none of a file that is missing, or damaged: its own run will say so.
std::vector<MetricsRow> evaluations_of(const FrozenPoint& point) try {
  const auto file = point.run / "metrics.jsonl";
  std::error_code none;
  return std::filesystem::exists(file, none) ? read_metrics(file) : std::vector<MetricsRow>();
} catch (const RunError&) {
  return {};
}

bool is_between(const MetricsRow& row, int64_t steps) {
  return 2 * row.step >= steps && 4 * row.step < 3 * steps;
}

bool is_trained_in_vain(const std::filesystem::path& run) {
  const auto status = read_status(run);
  return status && status->state == RunState::kDiverged;
}

// The reason to give a training of the stage up, by the runs that lie there; "": train it. Only
// what Stage::may_be_given_up names is.
std::string why_given_up(const Stage& stage, size_t point) {
  const auto found = stage.may_be_given_up.find(point);
  if (found == stage.may_be_given_up.end()) return "";
  const int64_t steps = found->second;
  const auto rows = evaluations_of(stage.sweep.points[point]);
  if (rows.empty() || 2 * rows.back().step < steps) return "";
  for (const auto& [training, at] : stage.points) {
    if (at != point) continue;
    for (const auto& [other, other_at] : stage.points) {
      if (other.task != training.task || other.arm != training.arm || other.seed != training.seed ||
          other_at == point)
        continue;
      const auto& rival = stage.sweep.points[other_at];
      if (is_trained_in_vain(rival.run)) continue;
      if (auto why = why_behind(rows, evaluations_of(rival), steps); !why.empty()) return why;
    }
  }
  return "";
}

}  // namespace

Stage stage_of(const Comparison& comparison, const std::vector<Training>& trainings, bool whole) {
  const std::string name = whole ? "final" : "choose";
  Stage stage{.sweep = {.folder = {}, .out = comparison.out, .name = name, .points = {}},
              .whole = whole,
              .points = {},
              .may_be_given_up = {}};
  std::map<std::filesystem::path, size_t> known;
  const auto& written = comparison.written;
  for (const auto& training : trainings) {
    const auto& arm = comparison.arms[training.task][training.arm];
    const auto seed = write_integer(training.seed);
    std::vector<std::pair<std::string, ConfigNode>> settings{
        {"task", write_text(written.tasks[training.task].name)},
        {"arm", write_text(written.arms[training.arm].name)},
        {"train.lr", write_number(training.rate)},
        {"seed", seed}};
    if (training.length != 1) settings.emplace_back("length", write_number(training.length));
    const auto config = shortened(with_rate(arm, training.rate), training.length, arm);
    auto point =
        freeze_point(std::move(settings), with_setting(config, "seed", seed), comparison.out);
    const auto [at, fresh] = known.emplace(point.run, stage.sweep.points.size());
    if (fresh) stage.sweep.points.push_back(std::move(point));
    stage.points.emplace(training, at->second);
    if (!whole && training.length == 1 && training.seed == written.choose_seeds.front() &&
        !comparison.baseline(training.task).solved_at)
      stage.may_be_given_up[at->second] = arm.steps;
  }
  place_sweep(stage.sweep, comparison.folder / name);
  return stage;
}

StageEnd as_it_stands(const Stage& stage) {
  std::vector<PointStatus> points(stage.sweep.points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    const auto status = read_status(stage.sweep.points[i].run);
    if (status && status->state == RunState::kFinished)
      points[i].state = PointState::kFinished;
    else if (auto diverged = diverged_before(stage.sweep.points[i]))
      points[i] = std::move(*diverged);
    else if (const auto why = why_given_up(stage, i); !why.empty())
      points[i] = {.state = PointState::kGivenUp, .reason = why};
  }
  return end_of(stage, points);
}

StageEnd run_stage(const Stage& stage, const SweepOrders& given) {
  auto orders = given;
  if (!stage.whole) {
    orders.give_up = [&](size_t point) { return why_given_up(stage, point); };
    orders.known = [&](size_t point) { return diverged_before(stage.sweep.points[point]); };
  }
  write_points(stage.sweep);
  auto end = end_of(stage, run_shown(stage.sweep, orders).first);
  write_summary(stage.sweep, end.summary);
  return end;
}

std::string why_behind(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& best,
                       int64_t steps) {
  std::optional<double> first, at_quarter;
  for (const auto& row : best)
    if (const auto loss = row.values.find(validation_loss_name());
        loss != row.values.end() && 4 * row.step <= steps && std::isfinite(loss->second)) {
      at_quarter = loss->second;
      if (!first) first = loss->second;
    }
  if (!at_quarter || rows.empty() || 4 * rows.back().step >= 3 * steps) return "";
  const double limit = *at_quarter + kMargin * std::max(0.0, *first - *at_quarter);
  for (const auto& row : rows)
    if (const auto loss = row.values.find(validation_loss_name());
        loss != row.values.end() && is_between(row, steps))
      return loss->second > limit
                 ? fmt::format(
                       "at step {} its loss is {:.4f}; another rate had {:.4f} after a "
                       "quarter of the steps",
                       row.step, loss->second, *at_quarter)
                 : "";
  return "";
}

}  // namespace headlab
