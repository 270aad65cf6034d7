// What turns the scores of a row into its weights: the softmax, or what stands in its place.
//
//   softmax   A_ij = exp z_ij / sum_j exp z_ij
//   sink      A_ij = exp z_ij / (exp sink_h + sum_j exp z_ij)
//   entmax    A_i = alpha-entmax(z_i)
//   sigmoid   A_ij = sigmoid(z_ij + offset), offset -ln of the number of keys by default
//   softpick  A_ij = relu(e^z_ij - 1) / (sum_j |e^z_ij - 1| + eps)
//
// all over the allowed keys; 0 at the others. The sink (gpt-oss) is a score that has no value;
// entmax: core/attention/entmax.h; sigmoid: Ramapuram et al., arXiv 2409.04431; softpick: Zuhri et
// al., arXiv 2504.20966. B batch, T queries, S keys, H heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace headlab {

using at::Tensor;
struct HeadCall;

struct WeightMap {
  enum class Kind { kSoftmax, kEntmax, kSigmoid, kSoftpick };
  enum class Divisor { kNone, kSqrt, kLength };  // of row i: 1, sqrt(i + 1), i + 1

  Kind kind = Kind::kSoftmax;
  Tensor sink = {};                   // softmax: [H], or [1] for all; undefined: none
  double alpha = 1.5;                 // entmax
  Tensor alphas = {};                 // entmax: [H] instead, learned
  std::optional<double> offset = {};  // sigmoid; none: -ln of the number of keys
  Divisor divisor = Divisor::kNone;
  double eps = 1e-8;  // softpick

  bool is_softmax() const { return kind == Kind::kSoftmax && !sink.defined(); }
  bool rows_sum_to_one() const { return is_softmax() || kind == Kind::kEntmax; }
  // Of `count` of the heads.
  WeightMap of_heads(int64_t first, int64_t count) const;
};

// The weights by call.map of scores z [B,H,T,S], biased, over the allowed keys (undefined: all):
// [B,H,T,S]. In rows without any they are 0, and no gradient passes. Heads of call.uniform weigh
// all that they may see by 1 / n.
Tensor weights_of(const Tensor& scores, const Tensor& allowed, const HeadCall& call);

// What a sink [H], or [1] for all, leaves to the softmax of a row with this log-sum-exp [B,H,T]:
// A = g softmax(z), g = sigmoid(LSE - sink). 0 in rows without an allowed key.
Tensor share_beside_sink(const Tensor& lse, const Tensor& sink);

// The offset of a sigmoid that has none, of examples that may differ: -ln of the number of keys,
// without those beyond the example's length. [B,1,1,1]; undefined: -ln S for all, or the map has an
// offset or is no sigmoid.
Tensor offset_by_example(const HeadCall& call, int64_t S, const at::TensorOptions& options);

// What a row of T queries and S keys is divided by in a map that divides: broadcasts to [B,H,T].
Tensor row_divisors(const HeadCall& call, int64_t T, int64_t S, const Tensor& like);

}  // namespace headlab
