// Softmax attention by torch's fused CPU kernels, for what torch does not offer with them: biases
// by distance that may learn, padded keys, rows without keys, queries that are the last of a
// sequence, and the log-sum-exp of the rows with its gradient. No [B,H,T,S] and no [H,T,S] is held.
//
// B batch, T queries, S keys, H heads, d width of queries and keys, e width of values. Query t
// stands at place S - T + t.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/attention_rows.h"

namespace headlab {

using at::Tensor;

struct AttendedRows {
  Tensor out;  // [B,H,T,e]; 0 in rows that see no key
  Tensor lse;  // [B,H,T] natural logarithm of the sum of exp(score); -infinity in such rows
};

// Which keys a row sees, and what is added to its scores.
struct FlashScope {
  KeyReach reach{kUnlimited, kUnlimited};
  Tensor key_length;  // [B] int64: the rest is padding; undefined: full
  // [H,S+T-1] finite biases at the distances j - i = 1-S .. T-1, as biases_by_distance() gives
  // them; a gradient passes to them. Undefined: none.
  Tensor distance_bias;
};

// Float32 or float64 on the CPU, all of one type, with something to compute.
bool flash_serves(const Tensor& q, const Tensor& k, const Tensor& v);

// q [B,H,T,d], k [B,H,S,d], v [B,H,S,e]; scale multiplies q k^T. Gradients pass from out and lse to
// q, k, v and distance_bias; rows that see no key have none. Throws where second derivatives are
// asked for, as torch's fused attention does.
AttendedRows flash_attend(const Tensor& q, const Tensor& k, const Tensor& v,
                          const FlashScope& scope, double scale);

// What paths by torch's fused kernels share: features of 0 behind the others, which change no
// product (the kernels want one width and dense features); and zeros [B,H,T,d], laid out as they
// lay out their output.
Tensor widen(const Tensor& x, int64_t width);
Tensor zero_rows(const Tensor& like);

}  // namespace headlab
