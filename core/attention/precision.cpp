#include "core/attention/precision.h"

#include <ATen/autocast_mode.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/torch.h"

namespace headlab {

at::ScalarType at_least_float(const Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool rounds(const Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ||
         at::autocast::is_autocast_enabled(t.device().type());
}

namespace {

// Calls `read` with stretches of n numbers that together are t; false, and nothing was called,
// where t is not a small tensor of float32 on the CPU. An operation of torch takes as long as
// reading thousands of numbers, which is felt where one token is decoded.
template <class Read>
bool read_small(const Tensor& t, Read read) {
  constexpr int64_t kSmall = 1 << 14, kStretches = 64;
  if (!t.is_cpu() || t.scalar_type() != at::kFloat || t.numel() > kSmall) return false;
  const auto sizes = t.sizes(), strides = t.strides();
  int64_t n = 1, d = t.dim();  // dimensions from d on lie in one stretch of n numbers
  while (d > 0 && (strides[d - 1] == n || sizes[d - 1] == 1)) n *= sizes[--d];
  const int64_t stretches = n > 0 ? t.numel() / n : 0;
  if (stretches > kStretches) return false;
  const auto* numbers = t.const_data_ptr<float>();
  for (int64_t stretch = 0; stretch < stretches; ++stretch) {
    int64_t offset = 0;
    for (int64_t outer = d - 1, rest = stretch; outer >= 0; rest /= sizes[outer--])
      offset += rest % sizes[outer] * strides[outer];
    read(numbers + offset, n);
  }
  return true;
}

float sum_of(const float* numbers, int64_t n) {
  std::array<float, 16> sums{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (size_t lane = 0; lane < 16; ++lane) sums[lane] += numbers[i + lane];
  return std::accumulate(numbers + i, numbers + n, std::accumulate(sums.begin(), sums.end(), 0.f));
}

}  // namespace

bool sums_are_finite(const Tensor& t) {
  float sum = 0;
  if (read_small(t, [&](const float* numbers, int64_t n) { sum += sum_of(numbers, n); }))
    return std::isfinite(sum);
  return t.numel() == 0 || std::isfinite(t.detach().sum(at_least_float(t)).item<double>());
}

bool all_above(const Tensor& t, double bound) {
  bool above = true;
  const auto look = [&](const float* numbers, int64_t n) {
    for (int64_t i = 0; i < n; ++i) above &= numbers[i] > bound;
  };
  if (read_small(t, look)) return above;
  return t.numel() == 0 || t.detach().amin().item<double>() > bound;
}

Tensor of_finite(const Tensor& matrices, const std::function<Tensor(const Tensor&)>& decompose) {
  const auto lost = matrices.isfinite().flatten(-2).all(-1).logical_not();
  const auto found = decompose(matrices.nan_to_num(0, 0, 0));
  auto sizes = lost.sizes().vec();
  sizes.resize(found.dim(), 1);
  return found.masked_fill(lost.view(sizes), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace headlab
