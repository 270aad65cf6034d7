// Softmax attention by torch's fused CPU kernels, for what torch does not offer with them: biases
// by distance that may learn, padded keys, rows without keys, queries that are the last of a
// sequence, and the log-sum-exp of the rows with its gradient. No [B,H,T,S] and no [H,T,S] is held.
//
// B batch, T queries, S keys, H heads, d width of queries and keys, e width of values. Query t
// stands at place S - T + t.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/attention/call/attention_call.h"

namespace headlab {

// Float32 or float64 on the CPU, all of one type, with something to compute.
bool flash_serves(const Tensor& q, const Tensor& k, const Tensor& v);

// The softmax of a call without dropout, mask or dense bias. Gradients pass from out and lse to q,
// k, v and distance_bias (finite); rows that see no key have none. Throws where second derivatives
// are asked for, as torch's fused attention does.
AttendedRows flash_attend(const AttentionCall& call);

// What paths by torch's fused kernels share: features of 0 behind the others, which change no
// product (the kernels want one width and dense features); and zeros [B,H,T,d], laid out as they
// lay out their output.
Tensor widen(const Tensor& x, int64_t width);
Tensor zero_rows(const Tensor& like);

}  // namespace headlab
