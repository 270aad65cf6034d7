#include "core/attention/positions/positions.h"

#include <cmath>

#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {

Rotary::Rotary(double base, RopeLayout layout, double fraction)
    : base_(base), fraction_(fraction), layout_(layout) {}

Tensor Rotary::rotate(const Tensor& x, const Tensor& positions) const {
  const int64_t d = x.size(-1);
  const int64_t r = static_cast<int64_t>(std::floor(d * fraction_)) / 2 * 2;
  if (r == 0) return x;
  const auto type = at_least_float(x);
  const auto options = at::TensorOptions(type).device(x.device());
  auto exponents = at::arange(0, r, 2, options) / static_cast<double>(r);
  auto frequency = at::pow(base_, exponents).reciprocal();                      // [r/2]
  auto angles = positions.to(options).unsqueeze(-2).unsqueeze(-1) * frequency;  // [..,1,T,r/2]
  auto cos = angles.cos().to(x.scalar_type()), sin = angles.sin().to(x.scalar_type());
  auto turned = x.narrow(-1, 0, r);
  const bool half = layout_ == RopeLayout::kHalf;
  auto a = half ? turned.narrow(-1, 0, r / 2) : turned.slice(-1, 0, r, 2);  // [B,H,T,r/2]
  auto b = half ? turned.narrow(-1, r / 2, r / 2) : turned.slice(-1, 1, r, 2);
  auto first = a * cos - b * sin, second = b * cos + a * sin;
  auto out = half ? at::cat({first, second}, -1) : at::stack({first, second}, -1).flatten(-2);
  return r == d ? out : at::cat({out, x.narrow(-1, r, d - r)}, -1);  // [B,H,T,d]
}

}  // namespace headlab
