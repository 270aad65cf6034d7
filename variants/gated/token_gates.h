// Gates that each token sets by itself, at one of five positions of a layer.
//
// Qiu et al., "Gated Attention for Large Language Models", arXiv 2505.06708, section 2.2:
//   s = act(z[..., :n] gate.weight^T + gate.bias),   Y <- Y * s  (additive: Y <- Y + s)
//   position   Y                                            z
//   output     o_h, before the gates of the context          x
//   value, key v, k behind projection and bias               the source of keys and values
//   query      q likewise                                    x
//   layer      y behind the output projection                x
#pragma once

#include "core/config/config.h"
#include "core/heads.h"

namespace headlab {

struct TokenGateOptions {
  std::string position = "output", shared = "none", activation = "sigmoid", granularity = "head";
  bool additive = false, bias = true;
  int64_t input_dims = 0;

  void visit(Fields& f);
  // Wants the layer inside to be such; `is_set`: gate is sigmoid.
  void check(const HeadTraits& inner, const std::string& kind, bool is_set,
             const Complain& complain) const;
  bool of_source() const { return position == "value" || position == "key"; }
  bool by_element() const { return granularity == "element"; }
  bool of_layer() const { return position == "layer"; }
  // Rows of gate.weight: heads (of queries or of keys and values; 1: of all alike) times numbers of
  // a head.
  int64_t heads(const HeadShape& shape) const;
  int64_t width(const HeadShape& shape, int64_t value_width) const;
  HeadAxes axes() const;
};

// s [B,n,T,w] of what the gates are made of, [B,T,rows]; `alive` bool [n] or undefined: the heads
// that `shared: scores` takes the mean of.
Tensor token_gates(const TokenGateOptions& options, const Tensor& made, int64_t heads,
                   const Tensor& alive);

// The call in which the layer inside has these gates: all positions but `layer`.
HeadCall with_token_gates(const TokenGateOptions& options, const Tensor& s, const HeadCall& call);

}  // namespace headlab
