// What breaks off a stick: weights from scores, with the map in memory and by rows.
//
// B batch, T queries, S keys, H heads, d width of queries and keys, e width of values.
#pragma once

#include "core/attention/call/attention_call.h"

namespace headlab {

// The weights A_ij = sigmoid(z_ij) prod_{k > j} (1 - sigmoid(z_ik)) and what is left of the stick,
// 1 - sum_j A_ij: [B,H,T,S], [B,H,T].
struct BrokenSticks {
  Tensor a, rest;
};
// Of scores [B,H,T,S] over the allowed keys (bool, broadcasts to them; undefined: all).
BrokenSticks break_sticks(const Tensor& scores, const Tensor& allowed);

// As a map, without the rest. An infinite score takes all that is left. Where the kind adds the
// rest to the weights, those that an observer sees sum to one.
MapPtr stick_map(bool rest_is_added);

// A v [B,H,T,e], with dropout of A, and the rest [B,H,T], without.
struct SaidBySticks {
  Tensor heads, rest;
};
// No map is held. The call has that map and the reach of the keys that break; `given` is what it
// was made of.
SaidBySticks broken_by_rows(const AttentionCall& call, const HeadCall& given);

// Whether dropout keeps the weight of each token on itself, times the factor of what is kept:
// [B,H,T] of the sizes of `rest`, for S keys, on a CPU.
Tensor kept_of_own(const Tensor& rest, int64_t S, const Dropout& dropout);

}  // namespace headlab
