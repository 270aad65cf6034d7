#include "experiments/models/position_kinds.h"

#include <cmath>

#include "core/torch.h"

namespace headlab {

Tensor sinusoidal(const Tensor& positions, int64_t width) {
  auto options = at::TensorOptions(at::kDouble).device(positions.device());
  auto exponents = at::arange(0, width, 2, options) / static_cast<double>(width);
  const auto angles =
      positions.to(at::kDouble).unsqueeze(1) * at::pow(10000.0, exponents.neg());  // [T,D/2]
  return at::cat({angles.sin(), angles.cos()}, 1).to(at::kFloat);                  // [T,D]
}

Tensor alibi_slopes(int64_t heads) {
  const int64_t n = int64_t{1} << static_cast<int64_t>(std::floor(std::log2(heads)));
  auto slopes = at::empty({heads}, at::kDouble);
  auto* m = slopes.data_ptr<double>();
  for (int64_t h = 0; h < heads; ++h)
    m[h] = h < n ? std::exp2(-8.0 * (h + 1) / n) : std::exp2(-4.0 * (2 * (h - n) + 1) / n);
  return slopes;
}

Alibi::Alibi(int64_t heads, const at::TensorOptions& options)
    : slopes_(alibi_slopes(heads).to(options.dtype(
          at::promote_types(c10::typeMetaToScalarType(options.dtype()), at::kFloat)))) {}

Tensor Alibi::by_distance(int64_t first, int64_t last) const {
  auto distance = at::arange(first, last + 1, slopes_.options()).abs();
  return -slopes_.unsqueeze(1) * distance;  // [H,last-first+1]
}

int64_t relative_bucket(int64_t distance, int64_t buckets, int64_t max_distance, bool causal) {
  int64_t first = 0, n = -distance;
  if (causal) {
    n = std::max<int64_t>(n, 0);
  } else {
    buckets /= 2;
    first = distance > 0 ? buckets : 0;
    n = std::abs(distance);
  }
  const int64_t exact = buckets / 2;
  if (n < exact) return first + n;
  // float32, as the authors compute it: the floor depends on the rounding.
  const float log_ratio = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                          static_cast<float>(std::log(static_cast<double>(max_distance) / exact));
  const auto step = static_cast<int64_t>(log_ratio * static_cast<float>(buckets - exact));
  return first + std::min(buckets - 1, exact + step);
}

RelativeBias::RelativeBias(Tensor weight, int64_t max_distance, bool causal)
    : weight_(std::move(weight)), max_distance_(max_distance), causal_(causal) {}

Tensor RelativeBias::by_distance(int64_t first, int64_t last) const {
  std::vector<int64_t> rows;
  rows.reserve(last - first + 1);
  for (int64_t distance = first; distance <= last; ++distance)
    rows.push_back(relative_bucket(distance, weight_.size(0), max_distance_, causal_));
  auto index = at::tensor(rows, at::kLong).to(weight_.device());
  return weight_.index_select(0, index).t();  // [H,last-first+1]
}

}  // namespace headlab
