#include "core/attention/precision.h"

#include <ATen/autocast_mode.h>

#include <cmath>
#include <limits>

#include "core/torch.h"

namespace headlab {

at::ScalarType at_least_float(const Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool rounds(const Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ||
         at::autocast::is_autocast_enabled(t.device().type());
}

bool sums_are_finite(const Tensor& t) {
  return t.numel() == 0 || std::isfinite(t.detach().sum(at_least_float(t)).item<double>());
}

Tensor of_finite(const Tensor& matrices, const std::function<Tensor(const Tensor&)>& decompose) {
  const auto lost = matrices.isfinite().flatten(-2).all(-1).logical_not();
  const auto found = decompose(matrices.nan_to_num(0, 0, 0));
  auto sizes = lost.sizes().vec();
  sizes.resize(found.dim(), 1);
  return found.masked_fill(lost.view(sizes), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace headlab
