#include "experiments/comparison/matched_size.h"

#include <fmt/format.h>

#include <cmath>

#include "core/torch.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_data.h"
#include "experiments/sweeps/sweep_summary.h"

namespace headlab {
namespace {

// All but tables of learned positions, "position.weight" of an embedding.
int64_t parameters_without_places(const Model& model) {
  int64_t count = 0;
  for (const auto& p : model.named_parameters())
    if (!p.key().ends_with("position.weight")) count += p.value().numel();
  return count;
}

// Before hours of training end with nothing to compare.
void require_metrics(const TaskArm& arm) {
  if (!arm.metrics.empty()) return;
  const auto* data = arm.config.find("data");
  Problems problems;
  problems.add(data ? data->place : arm.config.place, "data.kind",
               fmt::format("'{}' has no validation loss, so that its arms have no metric to be "
                           "compared by; give it validation examples",
                           arm.experiment.data.kind()));
  problems.raise();
}

}  // namespace

std::vector<FinalMetric> final_metrics(const DataSource& data, Split split) {
  const auto& task = data.task();
  std::vector<FinalMetric> metrics;
  const auto add = [&](const TaskMetric& metric) {
    metrics.push_back({.name = metric_name(split, metric.name),
                       .in_training = metric_name(Split::kValidation, metric.name),
                       .units = metric.units,
                       .higher_is_better = metric.higher_is_better});
  };
  if (task.metrics().empty() || data.examples(Split::kValidation) == 0) return {};
  add(task.metrics().front());
  if (metrics.front().in_training != validation_loss_name()) return {};
  if (!data.tokenizer())
    for (const auto& metric : task.own_metrics()) add(metric);
  return metrics;
}

const DataSource& ModelSizes::data_of(const Experiment& experiment) {
  if (auto settings = to_flow(experiment.data.write()); settings != data_settings_ || !data_) {
    data_ = open_training_data(experiment);
    data_settings_ = std::move(settings);
  }
  return *data_;
}

void ModelSizes::measure(TaskArm& arm) {
  const auto& data = data_of(arm.experiment);
  const auto model = build_trained_model(arm.experiment, data.shape(), at::kCPU);
  arm.parameters = parameter_count(*model);
  arm.without_places = parameters_without_places(*model);
  arm.flops_per_token = model->flops_per_token();
  arm.steps = arm.experiment.train.total_steps(data);
  arm.metrics = final_metrics(data, arm.measured_on());
  require_metrics(arm);
  arm.solved_at = data.solved_at();
}

std::optional<TaskArm> ModelSizes::with_width(const TaskArm& arm, const std::string& key,
                                              int64_t width) {
  auto adapted = arm;
  try {
    adapted.config = with_setting(arm.config, key, write_integer(width));
    adapted.experiment = Experiment();
    read_config(adapted.experiment, adapted.config);
    measure(adapted);
  } catch (const ConfigError&) {  // not every width fits every kind: another one is tried
    return std::nullopt;
  }
  adapted.adapted = width;
  return adapted;
}

// Sizes are linear in either width, or nearly so: two of them say where to look.
std::optional<TaskArm> ModelSizes::nearest(const TaskArm& arm, Match match, int64_t width,
                                           double wanted) {
  const std::string key = match == Match::kHeadDim ? "model.head_dim" : "model.d_ff";
  constexpr int64_t kFarthest = 16;  // from where it should be
  const auto twice = with_width(arm, key, 2 * width);
  if (!twice || twice->size(match) <= arm.size(match)) return std::nullopt;
  const double each = (twice->size(match) - arm.size(match)) / static_cast<double>(width);
  const auto ideal = width + std::llround((wanted - arm.size(match)) / each);
  std::optional<TaskArm> best;
  for (int64_t apart = 0; apart <= kFarthest; ++apart) {
    bool built = false;
    for (const auto candidate : {ideal - apart, ideal + apart}) {
      if (candidate < 1 || (apart == 0 && built)) continue;
      auto tried = with_width(arm, key, candidate);
      if (!tried) continue;
      built = true;
      if (!best || std::abs(tried->size(match) - wanted) < std::abs(best->size(match) - wanted))
        best = std::move(tried);
    }
    if (built && apart > 0) break;  // those on both sides of the nearest are farther off
  }
  return best;
}

void ModelSizes::match(TaskArm& arm, Match match, const TaskArm& baseline) {
  const double wanted = baseline.size(match);
  const auto off = [&] { return arm.size(match) / wanted - 1; };
  const auto say_unmatched = [&](const std::string& why) {
    arm.unmatched = fmt::format("{:+.1f} % {}: {}", 100 * off(),
                                match == Match::kFlops ? "FLOPs" : "parameters", why);
  };
  if (std::isnan(off())) {
    arm.unmatched = "FLOPs are not matched: its kind, or the baseline's, does not say them";
  } else if (std::abs(off()) > kMatchedWithin && match == Match::kNone) {
    say_unmatched("match: none");
  } else if (std::abs(off()) > kMatchedWithin) {
    const auto width = match == Match::kHeadDim ? arm.head_dim() : arm.hidden_width();
    if (auto adapted = nearest(arm, match, width, wanted)) arm = std::move(*adapted);
    if (std::abs(off()) > kMatchedWithin)
      say_unmatched(fmt::format("no model.{} makes it as large as the baseline",
                                match == Match::kHeadDim ? "head_dim" : "d_ff"));
  }
  arm.excess = arm.size(Match::kHiddenWidth) / baseline.size(Match::kHiddenWidth) - 1;
}

}  // namespace headlab
