#include "experiments/comparison/given_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/errors.h"
#include "experiments/runs/run_files.h"
#include "experiments/sweeps/sweep_summary.h"

namespace headlab {
namespace {

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

}  // namespace

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

}  // namespace headlab
