// Masked softmax attention as free functions: what the kinds of heads share.
//
// B batch, T queries, S keys, H query heads, d head width, e width of a head's values. In
// self-attention the last query stands at the last key: query i has place S - T + i.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace headlab {

using at::Tensor;
struct HeadContext;

enum class Backend { kAuto, kEager, kSdpa };

struct AttentionMask {
  bool causal = false;
  int64_t window = 0;               // 0: none; W: i-W < j <= i when causal, |i-j| < W when not
  Tensor query_length, key_length;  // [B] int64: the rest is padding; undefined: full
  Tensor allowed;                   // bool, broadcasts to [B,H,T,S]; true = may attend
};

// -> bool, broadcasts to [B,H,T,S]; undefined where every key is allowed. Queries beyond their
// length still attend; they do not count.
Tensor allowed_keys(const AttentionMask& mask, int64_t T, int64_t S, const at::Device& device);

// -> bool [B,n]: the places within each example's length [B]; undefined where that is undefined.
Tensor within_length(const Tensor& length, int64_t n, const at::Device& device);

// The pairs that count in a mean over a map: those allowed (undefined: all), in rows of queries
// within their length. map [B,H,T,S] gives the sizes -> bool [B,H,T,S].
Tensor counted_pairs(const Tensor& map, const Tensor& allowed, const AttentionMask& mask);

// Where keys and values come from: the memory [B,S,D], or x itself; and where its tokens stand [S].
const Tensor& source(const Tensor& x, const HeadContext& ctx);
Tensor key_positions(const HeadContext& ctx);

Tensor split_heads(const Tensor& x, int64_t heads);  // [B,T,H*d] -> [B,H,T,d]

// ctx.rotary at the given positions [T], or x itself: [B,H,T,d] -> [B,H,T,d].
Tensor rotate(const Tensor& x, const HeadContext& ctx, const Tensor& positions);

// Keys or values [B,Hkv,S,d] through ctx.cache: self-attention appends what compute() returns and
// gets all that was kept, cross-attention computes once. Without a cache: compute().
Tensor remembered(const HeadContext& ctx, const std::string& name,
                  const std::function<Tensor()>& compute);

Tensor repeat_kv(const Tensor& kv, const HeadContext& ctx,
                 int64_t heads);  // [B,Hkv,S,d] -> [B,H,S,d]

// What has a value for each head and pair, [..,H or 1,T,S], becomes 0 in the heads of ctx.uniform,
// which weigh all keys equally; masks by -infinity stay.
Tensor level(const Tensor& z, const HeadContext& ctx);
// Queries [B,H,T,d] likewise: without a bias, one of 0 makes all scores equal.
Tensor level_queries(const Tensor& q, const HeadContext& ctx);

// Product of gates that broadcast to [B,H,T] or [B,H,T,e]; undefined: 1.
Tensor multiply_gates(const Tensor& a, const Tensor& b);

// Applies ctx.gates, adds ctx.offset and joins the heads: [B,H,T,e] -> [B,T,H*e], ready for the
// output projection.
Tensor merge_heads(const Tensor& o, const HeadContext& ctx);

// scale q k^T + ctx.position_bias + ctx.bias. q [B,H,T,d], k [B,Hkv,S,d] -> [B,H,T,S], float32 for
// half types.
Tensor scores(const Tensor& q, const Tensor& k, const HeadContext& ctx, double scale);

// scale q k^T alone, for kinds that change it before the biases: likewise [B,H,T,S].
Tensor scaled_products(const Tensor& q, const Tensor& k, const HeadContext& ctx, double scale);

// ctx.position_bias of this layer's own heads at the distances j - i = 1-S .. T-1: [H,S+T-1]. And
// that of every pair, a view of it: [H,T,S].
Tensor biases_by_distance(const HeadContext& ctx, int64_t T, int64_t S);
Tensor biases_by_pair(const HeadContext& ctx, int64_t T, int64_t S);

// z + ctx.position_bias + ctx.bias, level in the heads of ctx.uniform, for kinds that change the
// scores before: [B,H,T,S].
Tensor add_biases(const Tensor& z, const HeadContext& ctx);

// Softmax over the allowed keys (undefined: all): 0 at the others and in rows without any, where no
// gradient passes either. z [B,H,T,S] -> [B,H,T,S].
Tensor masked_softmax(const Tensor& z, const Tensor& allowed);

// Dropout on the weights, then their sum of values: a [B,H,T,S], v [B,Hkv,S,e] -> [B,H,T,e].
Tensor weighted_values(const Tensor& a, const Tensor& v, const HeadContext& ctx);

// The plain kinds: softmax(scores) v by the fastest exact path, feeding ctx.probe.
// q [B,H,T,d], k [B,Hkv,S,d], v [B,Hkv,S,e] -> [B,H,T,e]. scale multiplies q k^T.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const HeadContext& ctx,
              double scale);

}  // namespace headlab
