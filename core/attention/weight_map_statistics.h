// What maps that are no softmax have to say of themselves, and how observers are told of them.
#pragma once

#include <vector>

#include "core/attention/observer.h"
#include "core/attention/weight_map.h"

namespace headlab {

// What observe_weights() reports of a map beside what every map has.
std::vector<Statistic> map_statistics(const WeightMap& map);

// Weights that call.map made.
struct MappedWeights {
  Tensor scores;        // [B,H,T,S] biased
  Tensor p, a;          // [B,H,T,S] by the map; and what heads mix of them, else the same
  Tensor v, out;        // [B,Hkv,S,e], [B,H,T,e]
  Tensor counted = {};  // bool [B,H,T] as in ObservedMap
};
void observe_weights(const MappedWeights& weights, const HeadCall& call);

}  // namespace headlab
