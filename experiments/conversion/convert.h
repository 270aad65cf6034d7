// Turns trained heads into heads of another kind without training: functions on named tensors.
//
// D d_model, H heads, Hkv key/value heads, d head_dim.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/head_kinds.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

// Takes the tensors whose names begin with `prefix` out, under what follows it.
NamedTensors take_under(NamedTensors& tensors, const std::string& prefix);

// One trained layer, and what its model asks of it.
struct TrainedLayer {
  std::string name;  // for messages: "layer 3"
  KindBlock attention;
  HeadShape shape;
  HeadDemands demands;
  NamedTensors weights;  // parameters and buffers under their names in the layer
};

// What a layer has become. Tensors lie on the CPU and have the type that the old ones had.
struct Conversion {
  std::optional<ConfigNode> attention;  // its block in a config; none: as it was
  int64_t kv_heads = 0;
  NamedTensors weights;
  double error = 0;  // relative Frobenius error of what was approximated
  // Of an mla layer: the energy of the keys' features that keep rope, and what the latent keeps of
  // the other features and of the values.
  std::optional<double> rope_share = {}, latent_share = {};
  // Numbers that decoding keeps of a token, before and after.
  std::optional<int64_t> cache_before = {}, cache_after = {};
  std::vector<int64_t> order;  // original index of each head where heads moved; else empty
};

// Multi-head to collaborative heads (Cordonnier et al., arXiv 2006.16362). At shared_dim H*d (the
// default) an exact copy; below, the CP decomposition of the heads' query-key products, whose
// relative error is Conversion::error. The bias of q becomes content_bias, that of k falls away in
// the softmax, values and output stay. ConfigError where the layer cannot be converted.
Conversion to_collaborative(const TrainedLayer& layer, std::optional<int64_t> shared_dim = {},
                            int64_t random_starts = 5);

// Multi-head to grouped-query attention (Ainslie et al., arXiv 2305.13245): keys and values of each
// group of heads become their mean. Conversion::error is that of k and v, weights and biases.
// ConfigError where kv_heads does not fit.
Conversion to_grouped(const TrainedLayer& layer, int64_t kv_heads);
// The same after align_heads() (head_alignment.h). ConfigError where moving heads would change what
// the layer does.
Conversion to_grouped_aligned(const TrainedLayer& layer, int64_t kv_heads);

// Rows of k or v, or their biases: [Hkv*d, ...] -> [groups*d, ...].
Tensor mean_of_groups(const Tensor& kv, int64_t groups, int64_t head_dim);

}  // namespace headlab
