#include "core/attention/weight_dropout.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/torch.h"

namespace headlab {
namespace {

// Bool [B,H,T,S]: the weights that are kept.
Tensor kept_on_cpu(const Tensor& a, const Dropout& dropout) {
  const int64_t S = a.size(3), rows = a.size(0) * a.size(1) * a.size(2);
  auto kept = at::empty(a.sizes(), at::kBool);
  auto* to = kept.mutable_data_ptr<bool>();
  at::parallel_for(0, rows, 1 + 16384 / std::max<int64_t>(1, S), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto of_row = dropout.row(row);
      for (int64_t j = 0; j < S; ++j) to[row * S + j] = of_row.keeps(static_cast<uint32_t>(j));
    }
  });
  return kept;
}

// The low 32 bits of x y for numbers of 32 bits in int64.
Tensor times(const Tensor& x, int64_t y) {
  // By halves of y, so that no product passes 2^63.
  return (x * (y & 0xFFFF) + ((x * (y >> 16)) & 0xFFFF) * 0x10000) & 0xFFFFFFFF;
}
Tensor shift_xor(const Tensor& x, int64_t by) { return x ^ at::bitwise_right_shift(x, by); }

}  // namespace

Tensor kept_by_operations(at::IntArrayRef sizes, const Dropout& dropout, const at::Device& device) {
  const int64_t rows = sizes[0] * sizes[1] * sizes[2];
  const auto words = at::empty({2, rows}, at::kLong);
  auto* seeds = words.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    const auto of_row = dropout.row(row);
    seeds[row] = of_row.seed, seeds[rows + row] = of_row.salt;
  }
  const auto here = words.to(device).view({2, sizes[0], sizes[1], sizes[2], 1});
  const auto j = times(at::arange(sizes[3], here.options()), 0x9E3779B9);
  auto x = (here[0] + j) & 0xFFFFFFFF;
  x = times(shift_xor(x, 16), 0x85EBCA6B) ^ here[1];
  x = times(shift_xor(x, 13), 0xC2B2AE35);
  return shift_xor(x, 16) >= static_cast<int64_t>(dropout.below);
}

Dropout weight_dropout(double p, const CounterRng& rng) {
  if (p == 0) return {};
  return {rng.bits(CounterRng::kAttentionDropout), static_cast<uint32_t>(p * 0x1p32), 1 / (1 - p)};
}

Tensor dropout(const Tensor& a, const Dropout& dropout) {
  if (dropout.below == 0) return a;
  const auto kept =
      a.is_cpu() ? kept_on_cpu(a, dropout) : kept_by_operations(a.sizes(), dropout, a.device());
  return a * kept.to(a.scalar_type()).mul_(dropout.factor);
}

}  // namespace headlab
