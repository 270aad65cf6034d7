// Positions that models offer: sinusoidal tables, and biases by the distance j - i of key and query
// (ALiBi, T5's relative buckets).
#pragma once

#include <cstdint>

#include "core/attention/positions/positions.h"

namespace headlab {

// The waves of Vaswani et al. 2017, positions [T] -> [T,D] with a_i = p * 10000^(-2i/D):
// [sin a_0 .. sin a_(D/2-1), cos a_0 ..] as fairseq and Marian lay them out (the paper alternates).
// Computed in float64, rounded to float32.
Tensor sinusoidal(const Tensor& positions, int64_t width);

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
