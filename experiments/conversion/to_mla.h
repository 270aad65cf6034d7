// Multi-head, grouped-query or multi-query attention into multi-head latent attention (TransMLA,
// arXiv 2502.07864; fxmeng/TransMLA), calibrated by tokens that the layer reads.
//
//   1 merge    all kv heads become one key of Hkv d features; query head h meets its slot: k_h =
//   U_h k 2 RoRoPE   one rotation for both members of all pairs of a group of M frequencies moves
//   what
//              varies most into few pairs; these keep rope, the other features lose it
//   3 balance  keys without rope are divided by the ratio of their norms to those of the values
//   4 low rank the first c eigenvectors of the second moment of [keys, values] are the latent
#pragma once

#include "experiments/conversion/convert.h"

namespace headlab {

struct LatentSettings {
  int64_t kv_rank = 0;              // c; 0: 4 d, and at most all that there is
  std::optional<int64_t> rope_dim;  // r; default d, without rope 0
  int64_t freqfold = 1;             // M
  int64_t q_rank = 0;               // 0: queries have no latent
  std::optional<double> balance = 1.0;
};

// Tokens that a layer reads, [n,D]: the second moment [D+1,D+1] of (x, 1), float64. Of a batch
// x [B,T,D] those within its lengths [B] (undefined: all) count.
Tensor token_moment(const Tensor& x, const Tensor& length);

// Those of step 2, and those of steps 3 and 4, which a model has with step 2 done in all of its
// layers.
struct Calibration {
  Tensor before, turned;
};

// ConfigError where the layer cannot be converted or a setting does not fit it. Members of a pair
// that rope turns lie half a head apart (`half_first`) or beside each other; in what it becomes,
// beside each other.
Conversion to_mla(const TrainedLayer& layer, const LatentSettings& settings,
                  const Calibration& tokens, bool half_first);

}  // namespace headlab
