// Composition of head maps: at every pair of a query i and a key j the values of all heads, scores
// or weights, form a vector, which is multiplied by a matrix that has a fixed part, a part of the
// query and a part of the key (Xiao et al., arXiv 2405.08553), or is one for all pairs.
//
// B batch, T queries, S keys, N tokens, H heads, R rank, d head width, e width of a head's values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/attention/masks.h"

namespace headlab {

using at::Tensor;
struct HeadCall;

// M_ij = I + fixed + sum_r w1_i[r]^T w2_i[r] + diag(g_i) + the same with w1_j, w2_j, g_j of the
// key, [H,H], index [from, to].
class Composition {
 public:
  Composition() = default;  // the identity
  // fixed [H,H]; query [B,2R+1,T,H] and key [B,2R+1,S,H] are rows w1, then rows w2, then g, or 2R
  // rows without g. What is undefined is 0. Composed in float32 at least, as matrices are.
  Composition(const Tensor& fixed, const Tensor& query, const Tensor& key);
  // M_ij = matrix [H,H] at every pair (undefined: the identity), behind which bias [H] is added
  // (undefined: none). Heads that are not in `alive` bool [H] (undefined: all) put nothing in.
  static Composition by_matrix(const Tensor& matrix, const Tensor& bias, const Tensor& alive);

  bool is_identity() const { return !matrix_.defined(); }
  // All of M that does not depend on the key, folded: broadcasts to [B,T,H,H].
  const Tensor& matrix() const { return matrix_; }
  const Tensor& query() const { return query_; }
  const Tensor& key() const { return key_; }
  const Tensor& bias() const { return bias_; }
  // a'[n] = sum_m a[m] M_ij[m,n] + bias[n]: a [B,H,T,S] -> [B,H,T,S].
  Tensor operator()(const Tensor& a) const;
  // What is added to a by: fixed, query's rows, query's gates, key's rows, key's gates. Undefined
  // where there is no such part.
  std::vector<Tensor> terms(const Tensor& a) const;

 private:
  Tensor fixed_, query_, key_, matrix_, bias_;
};

struct ComposedMaps {        // [B,H,T,S]
  Tensor products;           // scale q k^T
  Tensor scores;             // composed by `pre` and biased
  Tensor weights, composed;  // by call.map, and these after `post`
};
// The map: `pre` on scale q k^T, then biases, mask and call.map, then `post`. q [B,H,T,d], k
// [B,Hkv,S,d].
ComposedMaps composed_maps(const Tensor& q, const Tensor& k, const Composition& pre,
                           const Composition& post, const HeadCall& call, double scale);
// The last step alone: weights p [B,H,T,S] composed, those of keys that are not `allowed` 0.
Tensor composed_weights(const Tensor& p, const Composition& post, const Tensor& allowed);

struct ComposedHeads {
  Tensor out;          // [B,H,T,e]
  ComposedMaps shown;  // to call.observer; undefined where it wanted none
};
// What heads say through that map, feeding call.observer: dropout on it, then its sum of values v
// [B,Hkv,S,e], by the path of core/attention/paths.h that pays.
ComposedHeads composed_attend(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Composition& pre, const Composition& post, const HeadCall& call,
                              double scale);

}  // namespace headlab
