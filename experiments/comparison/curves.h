// What curves of validation loss over a training say: how much compute a loss took, and which loss
// stood at a time. Read between their points, and never beyond them. No torch in here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/measuring/paired.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

struct CurvePoint {
  int64_t step = 0;
  double flops = 0, wall_s = 0;  // of training, until then
  double loss = 0;
  int64_t examples = 0;                 // that the loss is of
  std::optional<Interval> spread = {};  // of a mean over seeds: 95 %, of t
};
using Curve = std::vector<CurvePoint>;  // by rising step

// The evaluations of a training. `flops_per_token`: of a forward pass; a backward one costs two.
Curve curve_of(const std::vector<MetricsRow>& rows, double flops_per_token);
// Means over trainings of the steps that all of them have.
Curve mean_curve(const std::vector<Curve>& curves);

// Compute that a curve takes to a loss. kAbove: more than all of it, for the loss lies below its
// last points; kBelow: less than until its first point; kNone: there is no curve.
struct Reach {
  enum Bound { kNone, kAt, kAbove, kBelow };
  Bound bound = kNone;
  double flops = 0;
};
Reach compute_for(const Curve& curve, double loss);

// None where the curve has no points on both sides.
std::optional<double> loss_at(const Curve& curve, double wall_s);

}  // namespace headlab
