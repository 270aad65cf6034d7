// The statistics of maps that are no plain softmax, and how observers are told of their weights.
#pragma once

#include <vector>

#include "core/attention/call/observer.h"
#include "core/attention/maps/map.h"

namespace headlab {

// What observe_weights() reports of a map beside what every map has.
std::vector<Statistic> map_statistics(const Map& map);

// Weights that call.map made.
struct MappedWeights {
  Tensor scores;        // [B,H,T,S] biased
  Tensor p, a;          // [B,H,T,S] by the map; and what heads mix of them, else the same
  Tensor v, out;        // [B,Hkv,S,e], [B,H,T,e]
  Tensor counted = {};  // bool [B,H,T] as in ObservedMap
};
void observe_weights(const MappedWeights& weights, const HeadCall& call);

}  // namespace headlab
