// Counter-based randomness: every draw is a function of (seed, step, site, layer, stream) alone, so
// that nothing has to be saved for a resumed run to draw the same numbers. Where neither a seed nor
// a step is set, each draw is a new one from torch's generator.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace headlab {

using at::Tensor;

// Mixes a counter into an independent 64-bit word (splitmix64, Steele et al. 2014).
uint64_t mix_bits(uint64_t x);

struct CounterRng {
  // Neither: each draw starts from torch's default generator, as manual_seed() sets it.
  std::optional<uint64_t> seed = {};
  uint64_t step = 0;
  uint64_t site = 0;  // site_key() of the attention: that of a decoder alone is 0
  int64_t layer = 0;

  // The attentions of one model draw apart: "self" is 0, every other name a number of its own.
  static uint64_t site_key(std::string_view name);

  // What a draw is for, so that two uses at one place differ.
  enum Stream : uint64_t {
    kAttentionDropout = 1,
    kResidualDropout,
    kMlpDropout,
    kGateNoise,
    kRows,
    kSampling,
    kActivationDropout,
    kExpertDropout
  };

  // The same with a seed, drawn now where nothing is set: for draws that have to agree.
  CounterRng seeded() const;
  uint64_t bits(uint64_t stream, uint64_t index = 0) const;  // without a seed: those of seed 0
  at::Generator generator(uint64_t stream, const at::Device& device) const;
};

// Inverted dropout: kept entries times 1/(1-p). x any shape; p in [0, 1); p = 0 returns x.
Tensor dropout(const Tensor& x, double p, const CounterRng& rng, uint64_t stream);

}  // namespace headlab
