// Masked softmax attention as free functions: what the kinds of heads share.
//
// B batch, T queries, S keys, H query heads, d head width, e width of a head's values. In
// self-attention the last query stands at the last key: query i has place S - T + i.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/attention/call/attention_call.h"
#include "core/attention/call/cache.h"
#include "core/attention/call/context.h"

namespace headlab {

using at::Tensor;

// Inputs.

// Where keys and values come from: the memory [B,S,D], or x itself; and where its tokens stand [S].
const Tensor& source(const Tensor& x, const HeadCall& call);
Tensor key_positions(const HeadCall& call);

// How many places lie before the queries of a call: those that its cache has seen.
int64_t past_places(const HeadCall& call);

// [B,T,H*d] -> [B,H,T,d]. Of no heads x has no width to tell d by: give it where it counts.
Tensor split_heads(const Tensor& x, int64_t heads, std::optional<int64_t> d = {});

// call.rotary at the given positions [T] or [B,T], or x itself: [B,H,T,d] -> [B,H,T,d].
Tensor rotate(const Tensor& x, const HeadCall& call, const Tensor& positions);

// Keys or values [B,Hkv,S,d] through call.cache: self-attention appends what compute() returns and
// gets all that was kept, the last `keep` places of it (default: the window; 0: all);
// cross-attention computes once. Without a cache: compute().
Tensor cached(const HeadCall& call, const std::string& name, const std::function<Tensor()>& compute,
              std::optional<int64_t> keep = {});

// Entries that are fewer than tokens (means of complete blocks), likewise: compute(first, count)
// makes those that the places of this pass complete, [B,H,count,d]; all of them, also of earlier
// passes, are returned.
Tensor cached_at_rate(const HeadCall& call, const std::string& name, CacheRate rate,
                      const std::function<Tensor(int64_t first, int64_t count)>& compute);

// What the layer reads beside q, k and v: x, the memory where there is one, or call.inputs' copies.
const Tensor& rest_of(const Tensor& x, const HeadCall& call);
const Tensor& rest_of_source(const Tensor& x, const HeadCall& call);

// Scores.

// scale q k^T + call.position_bias + call.bias. q [B,H,T,d], k [B,Hkv,S,d] -> [B,H,T,S], float32
// for half types.
Tensor scores(const Tensor& q, const Tensor& k, const HeadCall& call, double scale);

// scale q k^T alone, for kinds that change it before the biases: likewise [B,H,T,S].
Tensor scaled_products(const Tensor& q, const Tensor& k, const HeadCall& call, double scale);

// call.position_bias of this layer's own heads at the distances j - i = 1-S .. T-1: [H,S+T-1]. And
// such a table for every pair, a copy: [H,T,S].
Tensor biases_by_distance(const HeadCall& call, int64_t T, int64_t S);
Tensor by_pair(const Tensor& by_distance, int64_t S);

// z + call.position_bias + call.bias, equal in the heads of call.uniform, for kinds that change the
// scores before: [B,H,T,S].
Tensor add_biases(const Tensor& z, const HeadCall& call);

// Scores or biases [..,H or 1,T,S] become 0 in the heads of call.uniform, which weigh all keys
// equally; masks by -infinity stay.
Tensor uniform_scores(const Tensor& z, const HeadCall& call);
// Queries [B,H,T,d] likewise: without a bias, one of 0 makes all scores equal.
Tensor uniform_queries(const Tensor& q, const HeadCall& call);

// What autocast multiplies is of a half type, too coarse for scores and too narrow to hide any:
// those as float32, others as they are.
Tensor widened(const Tensor& z);

// Weights.

// Softmax over the allowed keys (undefined: all): 0 at the others and in rows without any, where no
// gradient passes either. Scores [B,H,T,S] -> [B,H,T,S], widened().
Tensor masked_softmax(const Tensor& scores, const Tensor& allowed);

// ln sum_j exp z_j over the allowed keys of each row; -infinity in rows without any, where no
// gradient passes. Scores [B,H,T,S] -> [B,H,T], widened().
Tensor log_sum_exp(const Tensor& scores, const Tensor& allowed);

// Outputs.

// Dropout on the weights, then their sum of values: a [B,H,T,S], v [B,Hkv,S,e] -> [B,H,T,e].
Tensor weighted_values(const Tensor& a, const Tensor& v, const HeadCall& call);
Tensor weighted_values(const Tensor& a, const AttentionCall& call);

// The plain kinds: call.map(scores) v by the fastest exact path, feeding call.observer.
// q [B,H,T,d], k [B,Hkv,S,d], v [B,Hkv,S,e] -> [B,H,T,e]. scale multiplies q k^T. Paths agree up to
// rounding; BackendError where call.backend asks for one that does not serve.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
              double scale);
// The same by the softmax, whatever the map, with the log-sum-exp of each row's scores, before
// dropout; gradients pass through both. sdpa does not serve: it has no log-sum-exp.
AttendedRows attend_lse(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                        double scale);

// Tells call.observer of what attend() found for `own`, which is of the call: weights that are no
// softmax are made once more, for it alone. For kinds that call attend() unobserved. `counted` as
// in HeadObserver::softmax().
void observe_attention(const AttentionCall& own, const Tensor& out, const HeadCall& call,
                       const Tensor& counted = {});

// Product of gates that broadcast to [B,H,T] or [B,H,T,e]; undefined: 1.
Tensor multiply_gates(const Tensor& a, const Tensor& b);

// Takes call.shaping.exclusion of each head's own value out of o [B,H,T,e]; v [B,Hkv,S,e] ends in
// the values of the queries' own tokens.
Tensor exclude_own(const Tensor& o, const Tensor& v, const HeadCall& call);

// Applies call.gates, adds call.offset and joins the heads: [B,H,T,e] -> [B,T,H*e], ready for the
// output projection.
Tensor merge_heads(const Tensor& o, const HeadCall& call);

}  // namespace headlab
