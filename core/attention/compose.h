// Composition of head maps: at every pair of a query i and a key j the values of all heads, scores
// or weights, form a vector, which is multiplied by a matrix that has a fixed part, a part of the
// query and a part of the key (Xiao et al., arXiv 2405.08553).
//
// B batch, T queries, S keys, N tokens, H heads, R rank, d head width, e width of a head's values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace headlab {

using at::Tensor;
struct HeadContext;

// M_ij = I + fixed + sum_r w1_i[r]^T w2_i[r] + diag(g_i) + the same with w1_j, w2_j, g_j of the
// key, [H,H], index [from, to].
class Composition {
 public:
  Composition() = default;  // the identity
  // fixed [H,H]; query [B,2R+1,T,H] and key [B,2R+1,S,H] are rows w1, then rows w2, then g. What is
  // undefined is 0.
  Composition(const Tensor& fixed, const Tensor& query, const Tensor& key);

  bool is_identity() const { return !matrix_.defined(); }
  // All of M that does not depend on the key, folded: broadcasts to [B,T,H,H].
  const Tensor& matrix() const { return matrix_; }
  const Tensor& query() const { return query_; }
  const Tensor& key() const { return key_; }
  // a'[n] = sum_m a[m] M_ij[m,n]: a [B,H,T,S] -> [B,H,T,S].
  Tensor operator()(const Tensor& a) const;
  // What is added to a by: fixed, query's rows, query's gates, key's rows, key's gates. Undefined
  // where there is no such part.
  std::vector<Tensor> terms(const Tensor& a) const;

 private:
  Tensor fixed_, query_, key_, matrix_;
};

struct ComposedMaps {
  Tensor softmax, composed;  // [B,H,T,S] before and after `post`
};
// The map: `pre` on scale q k^T, then biases, mask and softmax, then `post`. q [B,H,T,d], k
// [B,H,S,d].
ComposedMaps composed_maps(const Tensor& q, const Tensor& k, const Composition& pre,
                           const Composition& post, const HeadContext& ctx, double scale);

// What heads say through that map: dropout on it, then its sum of values v [B,H,S,e] -> [B,H,T,e].
// Takes the rows of a few queries at a time where it can, and then holds no map, nor for the
// backward pass: float32 and float64 on the CPU, no dropout, no bias that learns. Backend kEager
// holds them all.
Tensor composed_attend(const Tensor& q, const Tensor& k, const Tensor& v, const Composition& pre,
                       const Composition& post, const HeadContext& ctx, double scale);

}  // namespace headlab
