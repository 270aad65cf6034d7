// Head-pattern statistics as pure functions of maps: the formulas written down once,
// in float64. The streamed statistics are held against these.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/observe/head_sums.h"
#include "experiments/models/image_grid.h"

namespace headlab {

using at::Tensor;

// What a map does not say of itself. Undefined tensors: absent.
struct MapContext {
  Tensor allowed;  // bool, broadcasts to [B,H,T,S]: keys that a row may attend to; undefined: all
  Tensor query_length, key_length;  // [B]
  bool causal = false;              // then next_token does not exist
  bool cross = false;               // then nothing that compares places exists
  Tensor tokens;                    // [B,S] int64
  Tensor classes;                   // [B,S] uint8
  Tensor frequency_rank;            // [B,S] int64 of the tokens, 0: the most frequent
  std::optional<ImageGrid> grid;    // the tokens are patches of an image
  Tensor scores;                    // [B,H,T,S] scaled and biased, as before the mask
  Tensor value_norm;                // [B,H,S] norm(W_O^h v_j)
  Tensor output;                    // [B,H,T,e]
  double sink_threshold = 0.3;
  bool divergence = true;  // js
};

// The rows of weights a [B,H,T,S] as the statistics see them.
struct PatternRows {
  Tensor a;        // [B,H,T,S] float64, 0 at keys that may not be attended to
  Tensor allowed;  // [B,H,T,S] bool
  Tensor keys;     // [B,H,T] n_i, float64
  Tensor counted;  // [B,H,T] bool
  Tensor i, j;     // [T,1], [S] places, float64
};
PatternRows pattern_rows(const Tensor& a, const MapContext& context);

// Adds the rows of weights a [B,H,T,S] to `sums` (of H heads); js over every row.
void add_patterns(HeadSums& sums, const Tensor& a, const MapContext& context);

// norm(W_O^h v_j): v [B,H,S,e], output weight [D,H*e] -> [B,H,S].
Tensor value_norms(const Tensor& v, const Tensor& output_weight);

}  // namespace headlab
