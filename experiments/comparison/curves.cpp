#include "experiments/comparison/curves.h"

#include <algorithm>
#include <cmath>

#include "experiments/data/source.h"
#include "experiments/sweeps/sweep_costs.h"

namespace headlab {
namespace {

double between(double x, double x0, double x1, double y0, double y1) {
  return x1 == x0 ? y1 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

const CurvePoint* point_at(const Curve& curve, int64_t step) {
  const auto found = std::find_if(curve.begin(), curve.end(),
                                  [&](const CurvePoint& point) { return point.step == step; });
  return found == curve.end() ? nullptr : &*found;
}

}  // namespace

Curve curve_of(const std::vector<MetricsRow>& rows, double flops_per_token) {
  Curve curve;
  for (const auto& row : rows) {
    const auto loss = row.values.find(validation_loss_name());
    if (loss == row.values.end() || !std::isfinite(loss->second)) continue;
    const auto examples = row.values.find(metric_name(Split::kValidation, "examples"));
    curve.push_back(
        {.step = row.step,
         .flops = kPassesOfUpdate * flops_per_token * static_cast<double>(row.tokens),
         .wall_s = row.wall_s,
         .loss = loss->second,
         .examples = examples == row.values.end() ? 0 : static_cast<int64_t>(examples->second)});
  }
  return curve;
}

Curve mean_curve(const std::vector<Curve>& curves) {
  Curve means;
  for (size_t i = 0; !curves.empty() && i < curves[0].size(); ++i) {
    CurvePoint mean{.step = curves[0][i].step, .examples = curves[0][i].examples};
    std::vector<double> losses;
    for (const auto& curve : curves)
      if (const auto* point = point_at(curve, mean.step)) {
        losses.push_back(point->loss);
        mean.flops += point->flops, mean.wall_s += point->wall_s;
      }
    if (losses.size() != curves.size()) continue;
    const auto n = static_cast<double>(losses.size());
    mean.flops /= n, mean.wall_s /= n;
    const auto spread = spread_of(losses);
    mean.loss = spread.mean, mean.spread = t_interval(spread);
    means.push_back(mean);
  }
  return means;
}

Reach compute_for(const Curve& curve, double loss) {
  if (curve.empty()) return {};
  if (curve.front().loss <= loss)
    return {curve.front().loss == loss ? Reach::kAt : Reach::kBelow, curve.front().flops};
  for (size_t i = 1; i < curve.size(); ++i)
    if (curve[i].loss <= loss)
      return {Reach::kAt,
              between(loss, curve[i - 1].loss, curve[i].loss, curve[i - 1].flops, curve[i].flops)};
  return {Reach::kAbove, curve.back().flops};
}

std::optional<double> loss_at(const Curve& curve, double wall_s) {
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].wall_s == wall_s) return curve[i].loss;
    if (i > 0 && curve[i - 1].wall_s < wall_s && wall_s < curve[i].wall_s)
      return between(wall_s, curve[i - 1].wall_s, curve[i].wall_s, curve[i - 1].loss,
                     curve[i].loss);
  }
  return std::nullopt;
}

}  // namespace headlab
