// Who may attend to whom, and which rows and pairs count.
//
// B batch, T queries, S keys, H heads. In self-attention the last query stands at the last key:
// query i has place S - T + i.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace headlab {

using at::Tensor;
struct KeyReach;

// What is added to the score of a key that is hidden.
inline constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

struct AttentionMask {
  bool causal = false;
  int64_t window = 0;               // 0: none; W: i-W < j <= i when causal, |i-j| < W when not
  Tensor query_length, key_length;  // [B] int64: the rest is padding; undefined: full
  Tensor allowed;                   // bool, broadcasts to [B,H,T,S]; true = may attend
};

// -> bool, broadcasts to [B,H,T,S]; undefined where every key is allowed. Queries beyond their
// length still attend; they do not count.
Tensor allowed_keys(const AttentionMask& mask, int64_t T, int64_t S, const at::Device& device);

// The same of a reach, lengths and a mask.
Tensor allowed_keys(const KeyReach& reach, const Tensor& key_length, const Tensor& allowed,
                    int64_t T, int64_t S, const at::Device& device);

// A key with a bias of -infinity is hidden: takes it out of `allowed`, and its bias is 0.
void hide_by_bias(Tensor& bias, Tensor& allowed);

// Distances j - place -> bool of their shape: those within the reach of a row
// (core/kernels/attention_rows.h); undefined where it has no end.
Tensor within_reach(const Tensor& distance, const KeyReach& reach);

// -> bool [B,n]: the places within each example's length [B]; undefined where that is undefined.
Tensor within_length(const Tensor& length, int64_t n, const at::Device& device);

// The pairs that count in a mean over a map: those allowed (undefined: all), in rows of queries
// within their length. map [B,H,T,S] gives the sizes -> bool [B,H,T,S].
Tensor counted_pairs(const Tensor& map, const Tensor& allowed, const AttentionMask& mask);

// Both of two masks that broadcast together; undefined: everything.
Tensor both_allowed(const Tensor& a, const Tensor& b);

}  // namespace headlab
