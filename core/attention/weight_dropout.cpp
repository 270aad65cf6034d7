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
// Of numbers without a sign: int64 would draw its sign in.
Tensor shift_xor(const Tensor& x, int64_t by) {
  return x ^ (at::bitwise_right_shift(x, by) & ((int64_t{1} << (64 - by)) - 1));
}
int64_t word(uint64_t bits) { return static_cast<int64_t>(bits); }
// mix_word() of core/kernels/attention_rows.h.
Tensor mixed(const Tensor& x) {
  const auto first = shift_xor(x + word(0x9E3779B97F4A7C15ull), 30) * word(0xBF58476D1CE4E5B9ull);
  return shift_xor(shift_xor(first, 27) * word(0x94D049BB133111EBull), 31);
}

}  // namespace

// Dropout::row() and Dropout::OfRow::keeps().
Tensor kept_by_operations(at::IntArrayRef sizes, const Dropout& dropout, const at::Device& device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const auto rows = at::arange(sizes[0] * sizes[1] * sizes[2], options);
  const auto words = mixed(mixed(rows) ^ word(dropout.key)).view({sizes[0], sizes[1], sizes[2], 1});
  const auto seed = words & 0xFFFFFFFF, salt = at::bitwise_right_shift(words, 32) & 0xFFFFFFFF;
  auto x = (seed + times(at::arange(sizes[3], options), 0x9E3779B9)) & 0xFFFFFFFF;
  x = times(shift_xor(x, 16), 0x85EBCA6B) ^ salt;
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
