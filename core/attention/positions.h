// Positions: rotary embedding, sinusoidal tables, and biases that depend on the distance j - i only
// (ALiBi, T5's relative buckets).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace headlab {

using at::Tensor;

enum class RopeLayout { kHalf, kInterleaved };  // pairs (i, i + r/2), or (2i, 2i + 1)

// Rotary position embedding (Su et al., arXiv 2104.09864). With r = floor(d * fraction), made even,
// pair i < r/2 at position p turns by p * base^(-2i/r); the last d - r features pass.
class Rotary {
 public:
  explicit Rotary(double base = 10000, RopeLayout layout = RopeLayout::kHalf, double fraction = 1);
  // x [B,H,T,d], positions [T] -> [B,H,T,d]. Angles are float32, for float64 x float64.
  Tensor rotate(const Tensor& x, const Tensor& positions) const;

 private:
  double base_, fraction_;
  RopeLayout layout_;
};

// The waves of Vaswani et al. 2017, positions [T] -> [T,D] with a_i = p * 10000^(-2i/D):
// [sin a_0 .. sin a_(D/2-1), cos a_0 ..] as fairseq and Marian lay them out (the paper alternates).
// Computed in float64, rounded to float32.
Tensor sinusoidal(const Tensor& positions, int64_t width);

// A bias on the scores that depends on the distance between key and query alone. It is asked for by
// distance, so that no path has to hold [H,T,S].
class PositionBias {
 public:
  virtual ~PositionBias() = default;
  // -> [H, last - first + 1]: the bias at j - i = first .. last (query i, key j), per head.
  virtual Tensor by_distance(int64_t first, int64_t last) const = 0;
};

// -m_h |j - i| (Press et al., arXiv 2108.12409).
class Alibi : public PositionBias {
 public:
  // In float32 at least: half types cannot tell distances apart.
  Alibi(int64_t heads, const at::TensorOptions& options);
  Tensor by_distance(int64_t first, int64_t last) const override;

 private:
  Tensor slopes_;  // [H]
};
Tensor alibi_slopes(int64_t heads);  // [H] float64

// T5's learned bias (Raffel et al., arXiv 1910.10683): weight [buckets, H], row = bucket of j - i.
class RelativeBias : public PositionBias {
 public:
  RelativeBias(Tensor weight, int64_t max_distance, bool causal);
  Tensor by_distance(int64_t first, int64_t last) const override;

 private:
  Tensor weight_;
  int64_t max_distance_;
  bool causal_;
};
int64_t relative_bucket(int64_t distance, int64_t buckets, int64_t max_distance, bool causal);

}  // namespace headlab
