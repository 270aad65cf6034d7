// Head-pattern statistics as pure functions of maps: statistics.md's formulas written down once,
// in float64. The streamed statistics are held against these; kinds that change the map use them.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/probe.h"

namespace headlab {

// What a map does not say of itself. Undefined tensors: absent.
struct PatternFacts {
  Tensor allowed;  // bool, broadcasts to [B,H,T,S]: keys that a row may attend to; undefined: all
  Tensor query_length, key_length;  // [B]
  bool causal = false;              // then next_token does not exist
  bool cross = false;               // then nothing that compares places exists
  Tensor tokens;                    // [B,S] int64
  Tensor classes;                   // [B,S] uint8
  Tensor value_norm;                // [B,H,S] norm(W_O^h v_j)
  Tensor output;                    // [B,H,T,e]
  double sink_threshold = 0.3;
};

// Adds the rows of weights a [B,H,T,S] to `sums` (of H heads); js over every row.
void add_patterns(HeadSums& sums, const Tensor& a, const PatternFacts& facts);

// norm(W_O^h v_j): v [B,H,S,e], output weight [D,H*e] -> [B,H,S].
Tensor value_norms(const Tensor& v, const Tensor& output_weight);

}  // namespace headlab
