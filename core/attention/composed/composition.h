// Composition of head maps: at every pair of a query i and a key j the values of all heads, scores
// or weights, form a vector, which is multiplied by a matrix: one for all pairs, or one that has a
// part of the query and a part of low rank of the key.
//
// B batch, T queries, S keys, H heads, R rank, d head width, e width of a head's values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/attention/call/masks.h"
#include "core/attention/call/observer.h"
#include "core/attention/call/statistic.h"

namespace headlab {

using at::Tensor;
struct HeadCall;

// Layer norm over the heads of a pair whose values r have mean 0 over the heads that share:
// n = r / sqrt(sum_h share_h r_h^2 + eps), a = weight n + bias.
struct HeadNorm {
  Tensor weight, bias, share;  // [H] in the type of the maps; undefined: no norm
  double eps = 0;
};

// M_ij = Q_i + sum_r w1_j[r]^T w2_j[r] + diag(g_j), [H,H], index [from, to].
class Composition {
 public:
  Composition() = default;  // the identity
  // Q broadcasts to [B,T,H,H]; key [B,2R+1,S,H] are rows w1, then rows w2, then g, or 2R rows
  // without g; undefined: no such part. Both float32 or wider, as matrices are.
  Composition(const Tensor& matrix, const Tensor& key) : matrix_(matrix), key_(key) {}
  // M_ij = matrix [H,H] at every pair (undefined: the identity), behind which bias [H] is added
  // (undefined: none). Heads that are not in `alive` bool [H] (undefined: all) put nothing in.
  static Composition by_matrix(const Tensor& matrix, const Tensor& bias, const Tensor& alive);

  // The same with a norm behind it.
  Composition normed(const HeadNorm& norm) const {
    auto own = *this;
    own.norm_ = norm;
    return own;
  }

  bool is_identity() const { return !matrix_.defined(); }
  const Tensor& matrix() const { return matrix_; }
  const Tensor& key() const { return key_; }
  const Tensor& bias() const { return bias_; }
  const HeadNorm& norm() const { return norm_; }
  // What it makes of nothing is not nothing.
  bool adds() const { return bias_.defined() || norm_.weight.defined(); }
  // a'[n] = sum_m a[m] M_ij[m,n] + bias[n], normed: a [B,H,T,S] -> [B,H,T,S].
  Tensor operator()(const Tensor& a) const;

 private:
  Tensor matrix_, key_, bias_;
  HeadNorm norm_;
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
// [B,Hkv,S,e], by the path of core/attention/paths/paths.h that pays.
ComposedHeads composed_attend(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Composition& pre, const Composition& post, const HeadCall& call,
                              double scale);

// What an observer finds of weights that heads mix behind the softmax.
const std::vector<Statistic>& composed_statistics();

// The share of a mixing `w` [H,H] of the alive heads that leaves its head, by layer.
Statistic off_diagonal_statistic(const char* name, const char* long_name);
void report_off_diagonal(HeadObserver& observer, const std::string& name, const Tensor& weight,
                         const Tensor& alive);

}  // namespace headlab
