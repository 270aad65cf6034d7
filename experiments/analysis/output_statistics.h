// Statistics of what heads say: how much, how alike, and what of it reaches the residual stream.
// In float64 on the CPU, whatever the outputs are in.
//
// B batch, T queries, S keys, D d_model, H heads of a layer, e width of a head's values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace headlab {

using at::Tensor;

// a_ij norm(W_O^h v_j) (Kobayashi et al., arXiv 2004.10102): a [B,H,T,S], v [B,H,S,e], weight
// [D,H*e] of the output projection -> [B,H,T,S].
Tensor norm_map(const Tensor& a, const Tensor& v, const Tensor& weight);
// norm(sum_h a_ij W_O^h v_j), what a key brings through all heads: likewise -> [B,T,S].
Tensor summed_norm_map(const Tensor& a, const Tensor& v, const Tensor& weight);

// What the heads of one layer put out in one batch.
struct LayerOutputs {
  Tensor o;        // [B,H,T,e], before gates
  Tensor weight;   // [D,H*e] of the output projection; undefined: no contribution_norm
  Tensor hidden;   // [B,T,D] the layer's input; undefined: no residual_ratio
  Tensor counted;  // bool, broadcasts to [B,H,T]: rows of these heads that count; undefined: all
};

// Sums over batches; rows beyond an example's length never count. A pair of heads is compared over
// the rows that count for both. What no row counted for is NaN.
class OutputSums {
 public:
  // Without likeness() no pairs of layers are summed: it holds float64 (L H e)^2 / 2 numbers.
  struct Options {
    bool likeness = true;
  };
  OutputSums() : OutputSums(Options()) {}
  explicit OutputSums(const Options& options) : options_(options) {}

  // All layers of a site in order, of the same examples; length [B] of their queries, undefined:
  // full. Every batch has the same layers: c10::Error where their sizes change.
  void add(const std::vector<LayerOutputs>& layers, const Tensor& length);

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  Tensor output_norm(int64_t layer) const;        // [H] mean of norm(o_h[i])
  Tensor contribution_norm(int64_t layer) const;  // [H] mean of norm(W_O^h o_h[i])
  // [H,H] mean of cos(o_h[i], o_g[i]), to each norm 1e-20 is added (Michel et al., 1905.10650).
  Tensor output_cosine(int64_t layer) const;
  // Mean over examples of norm_F(X - column means) / norm_F(X), X the hidden states within the
  // length; examples whose X is 0 or empty do not count. Dong et al., arXiv 2103.03404.
  double residual_ratio(int64_t layer) const;
  // Linear CKA (Kornblith et al., arXiv 1905.00414) of every two heads of all layers, [N,N] for N
  // heads in order of layers: norm_F(Y^T X)^2 / (norm_F(X^T X) norm_F(Y^T Y)), columns centred.
  Tensor cka() const;

 private:
  // The rows of one batch that are within an example's length, of one layer.
  struct Rows {
    Tensor o;        // [R,H,e], 0 where it does not count
    Tensor counted;  // [R,H] of 0 and 1, or [R,1] where that is the same for all heads
  };
  struct LayerSums {
    Tensor norm, contribution;  // [1,H]
    Tensor rows;                // [1,H or 1]
    Tensor cosine, both;        // [H,H], [H or 1,H or 1]
    Tensor origin;              // [H,e] subtracted before likeness is summed, which it leaves alone
    double ratio = 0, examples = 0;
  };
  // Sums over the rows that count in both of two layers, of H and G heads. h and g: H and G, or 1
  // where the other layer's rows are the same for all of its heads.
  struct PairSums {
    Tensor rows;    // [h,g]
    Tensor x, y;    // [g,H*e], [h,G*f]
    Tensor xx, yy;  // [g,H,e,e], [h,G,f,f]
    Tensor xy;      // [H*e,G*f]
  };
  static Rows rows_of(const LayerOutputs& outputs, const Tensor& valid);
  static void add_layer(LayerSums& sums, const Rows& rows, const Tensor& weight);
  static void add_hidden(LayerSums& sums, const Tensor& hidden, const Tensor& valid);
  static void add_pair(PairSums& sums, const Rows& x, const Rows& y);
  static Tensor cka(const PairSums& sums);  // [H,G]

  Options options_;
  std::vector<LayerSums> layers_;
  std::vector<PairSums> pairs_;  // (0,0), (0,1), ..., (1,1), ...
};

// Mean of output_cosine over all pairs of heads that exist, each head with itself included.
double output_disagreement(const Tensor& output_cosine);

}  // namespace headlab
