// Experts of heads: each head has E matrices, of which a token uses the K that a router scores
// highest. Of many experts only those are computed; of few all are, in one product.
//
// B batch, T tokens, H heads, D d_model, d width of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/attention/call/observer.h"

namespace headlab {

using at::Tensor;

struct ChosenExperts {
  Tensor score;     // [B,T,H,E]
  Tensor selected;  // bool [B,T,H,E]
  int64_t K;

  // Those of the K largest ranks [B,T,H,E], of equals the first; the choice passes no gradient, the
  // scores do.
  ChosenExperts(const Tensor& scores, const Tensor& rank, int64_t count);

  bool few() const;        // one product with all experts takes less time than one for each
  Tensor kept() const;     // [B,T,H,E] scores, 0 where not chosen
  Tensor experts() const;  // [B,T,H,K] int64, ascending
};

// sum_k weight_k W_k x of each token and head: x [B,T,D], weight [H*E*d,D] -> [B,H,T,d].
Tensor project_by_experts(const Tensor& x, const Tensor& weight, const ChosenExperts& chosen);
// sum_h sum_k weight_k W_k o_h of each token: o [B,T,H*d], weight [D,H*E*d] -> [B,T,D].
Tensor sum_by_experts(const Tensor& o, const Tensor& weight, const ChosenExperts& chosen);
// The same o as features of the experts, 0 where the token did not choose one: o [B,H,T,d], factors
// [B or 1,T or 1,H,E] -> [B,H,T,E*d].
Tensor spread_over_experts(const Tensor& o, const Tensor& factors);

// `side`_probability and `side`_selected [H,E] over the tokens that count, bool [B,T] (undefined:
// all). Returns the mean of kept() over them: [1,1,H,E].
Tensor report_experts(HeadObserver& observer, const std::string& side, const ChosenExperts& chosen,
                      const Tensor& counted);

}  // namespace headlab
