// Attention over chosen pairs of query and key: what a mask or bias of the whole map says of them,
// without the map. For kinds that meet their keys in tiles.
#pragma once

#include "core/attention/call/context.h"

namespace headlab {

// Indices of heads (this layer's rows), query rows and key rows. They broadcast together to
// [H, ...]; h is [H, 1, ...] with every dimension of the result. Where keys differ by example, j is
// [B or 1, H, ...].
struct Pairs {
  Tensor h, i, j;
};

// The scope whose mask.allowed and bias are those of the call at the pairs, causality, window,
// lengths and position bias included: they broadcast to [B, H, ...]. Query row i of T stands at key
// row S - T + i. `real`: which of the pairs there are; rows outside of 0..T-1 and 0..S-1 may be
// named where it is false. Undefined: all.
Scope scope_of_pairs(const HeadCall& call, const Pairs& pairs, int64_t T, int64_t S,
                     const Tensor& real = {});

}  // namespace headlab
