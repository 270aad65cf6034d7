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

// What the layer reads in step 2, and in steps 3 and 4, which a model sees with step 2 done in all
// of its layers: [n,D] of tokens that count.
struct CalibrationTokens {
  Tensor before, turned;
};

struct LatentConversion : Conversion {
  double rope_share = 0;    // energy of the keys' features that keep rope
  double latent_share = 0;  // energy that the latent keeps of the other features and the values
};

// ConfigError where the layer cannot be converted or a setting does not fit it. Keys of a layer
// with rope have the layout `half_first` (pairs i, i + d/2) or lie beside each other.
LatentConversion to_mla(const TrainedLayer& layer, const LatentSettings& settings,
                        const CalibrationTokens& tokens, bool half_first);

}  // namespace headlab
