// Sizes at which one way to compute an attention becomes faster than another. Beside each stands
// what measures it: scripts/bench/kinds of builds with and without (docs/measurements.md).
#pragma once

#include <cstdint>

namespace headlab::threshold {

// Query rows of a tile of fused attention: few, so that what causal rows do not see is left out
// (torch's own causal mask spares nothing of the first 512 keys). 128, 192 or 256 rows are at most
// a tenth faster at T = 64 to 1024, and a fifth slower at T = 128. --kinds mha --set
// data.context=128
constexpr int64_t kFlashRows = 64;

// The same of rows that heads choose. --kinds moh --set data.context=256
constexpr int64_t kChosenRows = 96;

// Queries from which on causal or windowed rows go in such tiles: torch spares what they do not see
// from 512 keys on. --kinds mha --set data.context=256
constexpr int64_t kFewestFlashQueries = 256;

// Queries this many times as wide as values: sdpa, which widens the values, multiplies mostly
// zeros, and a map that is no larger than the queries takes half the time (T = 64 and 256).
// --kinds mla
constexpr int64_t kWiderThanValues = 2;

// Tokens of a pass from which on, and share of the rows up to which, chosen rows alone take less
// time than all. --kinds moh --set model.attention.compute=sparse, and =dense
constexpr int64_t kFewestChosenTokens = 256;
constexpr double kLargestChosenShare = 0.7;

// Share of the keys that tiles hold from which on the dense map with a mask takes less time.
// --kinds bigbird
constexpr double kLargestTiledShare = 0.6;

// Rows from which on oneDNN multiplies faster than the BLAS: below, it is memory that counts.
// --kinds mha --set train.batch=1
constexpr int64_t kFewestOnednnRows = 16;

}  // namespace headlab::threshold
