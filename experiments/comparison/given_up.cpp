#include "experiments/comparison/given_up.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "experiments/runs/run_files.h"
#include "experiments/runs/sweep_summary.h"

namespace headlab {
namespace {

std::vector<MetricsRow> evaluations_of(const FrozenPoint& point) {
  const auto file = point.run / "metrics.jsonl";
  std::error_code none;
  return std::filesystem::exists(file, none) ? read_metrics(file) : std::vector<MetricsRow>();
}

}  // namespace

std::string why_behind(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& best,
                       int64_t steps) {
  std::optional<double> at_quarter;
  for (const auto& row : best)
    if (const auto loss = row.values.find(kLossMetric);
        loss != row.values.end() && 4 * row.step <= steps && std::isfinite(loss->second))
      at_quarter = loss->second;
  if (!at_quarter) return "";
  for (const auto& row : rows)
    if (const auto loss = row.values.find(kLossMetric);
        loss != row.values.end() && 2 * row.step >= steps && row.step < steps)
      return loss->second > *at_quarter
                 ? fmt::format(
                       "at step {} its loss is {:.4f}; another rate had {:.4f} after a "
                       "quarter of the steps",
                       row.step, loss->second, *at_quarter)
                 : "";
  return "";
}

std::string why_given_up(const Stage& stage, size_t point) {
  if (stage.whole) return "";
  const auto rows = evaluations_of(stage.sweep.points[point]);
  if (rows.empty()) return "";
  const int64_t steps = stage.sweep.points[point].experiment.train.steps.value_or(0);
  for (const auto& [training, at] : stage.points) {
    if (at != point) continue;
    for (const auto& [other, other_at] : stage.points) {
      if (other.task != training.task || other.arm != training.arm || other.seed != training.seed ||
          other_at == point)
        continue;
      const auto& rival = stage.sweep.points[other_at];
      const auto status = read_status(rival.run);
      if (!status || status->state != RunState::kFinished) continue;
      if (auto why = why_behind(rows, evaluations_of(rival), steps); !why.empty()) return why;
    }
  }
  return "";
}

}  // namespace headlab
