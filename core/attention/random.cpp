#include "core/attention/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>

#include "core/torch.h"

namespace headlab {

uint64_t mix_bits(uint64_t x) { return mix_word(x); }

namespace {

// 1 where a weight is kept, else 0, times the factor: bytes [B,H,T,S] of a CPU.
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

// The same by operations of torch: Dropout::OfRow::keeps().
Tensor kept_by_operations(const Tensor& a, const Dropout& dropout) {
  const int64_t rows = a.size(0) * a.size(1) * a.size(2);
  const auto words = at::empty({2, rows}, at::kLong);
  auto* seeds = words.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    const auto of_row = dropout.row(row);
    seeds[row] = of_row.seed, seeds[rows + row] = of_row.salt;
  }
  const auto here = words.to(a.device()).view({2, a.size(0), a.size(1), a.size(2), 1});
  const auto j = times(at::arange(a.size(3), here.options()), 0x9E3779B9);
  auto x = (here[0] + j) & 0xFFFFFFFF;
  x = times(shift_xor(x, 16), 0x85EBCA6B) ^ here[1];
  x = times(shift_xor(x, 13), 0xC2B2AE35);
  return shift_xor(x, 16) >= static_cast<int64_t>(dropout.below);
}

}  // namespace

uint64_t CounterRng::site_key(std::string_view name) {
  if (name == "self") return 0;
  uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

CounterRng CounterRng::seeded() const {
  auto rng = *this;
  if (!seed && step == 0) rng.seed = at::empty({}, at::kLong).random_().item<int64_t>();
  return rng;
}

uint64_t CounterRng::bits(uint64_t stream, uint64_t index) const {
  uint64_t h = mix_bits(seed.value_or(0));
  if (site != 0) h = mix_bits(h ^ site);
  for (uint64_t word : {step, static_cast<uint64_t>(layer), stream, index}) h = mix_bits(h ^ word);
  return h;
}

at::Generator CounterRng::generator(uint64_t stream, const at::Device& device) const {
  const auto own = seeded().bits(stream);
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(own);
  auto generator = at::detail::getCUDAHooks().getNewGenerator(device.index());
  generator.set_current_seed(own);
  return generator;
}

Dropout weight_dropout(double p, const CounterRng& rng) {
  if (p == 0) return {};
  return {rng.bits(CounterRng::kAttentionDropout), static_cast<uint32_t>(p * 0x1p32), 1 / (1 - p)};
}

Tensor dropout(const Tensor& a, const Dropout& dropout) {
  if (dropout.below == 0) return a;
  const auto kept = a.is_cpu() ? kept_on_cpu(a, dropout) : kept_by_operations(a, dropout);
  return a * kept.to(a.scalar_type()).mul_(dropout.factor);
}

Tensor dropout(const Tensor& x, double p, const CounterRng& rng, uint64_t stream) {
  if (p == 0) return x;
  auto keep = at::empty_like(x, x.options().requires_grad(false), at::MemoryFormat::Contiguous);
  keep.bernoulli_(1 - p, rng.generator(stream, x.device()));
  return x * keep.div_(1 - p);
}

}  // namespace headlab
