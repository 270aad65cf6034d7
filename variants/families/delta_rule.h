// The gated delta rule: heads that keep a matrix instead of keys and values. Each token corrects it
// and reads it.
//
// Yang et al., "Gated Delta Networks", arXiv 2412.06464; "Kimi Linear", arXiv 2510.26692. With
// decays a_t = e^(g_t), one of the head or one of each key feature, and S_t [d,e],
//   S_t = Diag(a_t) S_(t-1) + b_t k_t (v_t - (Diag(a_t) S_(t-1))^T k_t)^T       o_t = S_t^T q_t
// q, k, b and g do not read v, so that o = A v with a map of the tokens, of any sign: with c the
// sums of g up to a token, G_ij = e^(c_i - c_j) for j <= i,
//   A = tril(Q K^T * G) (I + stril(Diag(b) (K K^T * G)))^-1 Diag(b)
// and where decays are of features, sum_f q_if k_jf e^(c_if - c_jf) for Q K^T * G.
//
// B batch, H heads, T tokens, d width of a key, e of a value.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/attention/call/statistic.h"
#include "variants/families/visible_tokens.h"

namespace headlab {

// The tokens of a pass, closed up (VisibleTokens), of float32 or wider.
struct DeltaTokens {
  Tensor q, k;       // [B,H,T,d], q times the scale
  Tensor v;          // [B,H,T,e]
  Tensor beta;       // [B,H,T,1], 0 for hidden tokens
  Tensor log_decay;  // g <= 0: [B,H,T,1] or [B,H,T,d], 0 for hidden tokens
};

// o [B,H,T,e] by chunks of 64 tokens: the closed form within one, the state between two. Time and
// memory are linear in T. `state` [B,H,d,e] (undefined: 0) becomes that behind the last token.
Tensor delta_rule(const DeltaTokens& in, Tensor& state);

// A [B,H,T,T] itself, in time and memory of T^2 (T + d).
Tensor delta_map(const DeltaTokens& in);

// The heads' outputs in the order of x [B,H,T,e], feeding call.observer. Continues from the state
// in call.cache. The map is made for the eager backend, for dropout of weights and for an observer;
// behind a cache it is not observed, since keys of earlier passes are gone. BackendError for other
// backends.
Tensor attend_by_delta_rule(const DeltaTokens& in, const VisibleTokens& tokens,
                            const HeadCall& call);

// What these heads report to an observer.
std::vector<Statistic> delta_statistics();

}  // namespace headlab
