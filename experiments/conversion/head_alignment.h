// Moves and turns the heads of multi-head attention, without changing what it computes, so that
// heads which are merged have similar keys and values.
//
// After Jin et al., "Align Attention Heads Before Merging Them", arXiv 2412.20677: there similarity
// is measured on cached keys and values, here on the weights.
#pragma once

#include <vector>

#include "core/heads.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

struct AlignedHeads {
  NamedTensors weights;
  std::vector<int64_t> order;  // [H] original index of each query head
};

// Weights (float64) of mha for merging its kv heads into `groups` of neighbours. Heads that differ
// least come into one group: heads of two groups change places as long as the squared distances
// inside the groups fall. Then each group's heads turn towards their mean (orthogonal Procrustes):
// values together with the columns of o, keys together with queries where `turn_keys` (rotary
// positions and norms of queries and keys know no such freedom).
AlignedHeads align_heads(NamedTensors weights, const HeadShape& shape, int64_t groups,
                         bool turn_keys);

}  // namespace headlab
