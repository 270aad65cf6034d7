// Attention of tiles of queries over the blocks of keys that each tile sees: time and memory grow
// with what is seen, not with T S.
//
// B batch, T queries, S keys, H heads, d head width, e width of a value, n tiles, m blocks a tile.
// A place counts from the start of the sequence: key row j stands at place first_key + j, query row
// i at key row S - T + i.
#pragma once

#include "core/attention/call/context.h"

namespace headlab {

// Of T query rows those from `first` on, `rows` of them, are cut into tiles of `height` rows: tile
// t begins at row first - lead + t height. Block c of keys holds the places c block .. (c + 1)
// block.
struct BlockTiles {
  int64_t block = 1;
  int64_t first = 0, rows = 0, lead = 0, height = 1;
  // [B or 1,H,n,m] int64: the blocks that a tile sees, none of them twice; -1: none. A block may
  // lie beyond the keys, or before those that the cache has kept. Undefined: every row sees all
  // keys.
  Tensor blocks = {};

  int64_t count() const { return rows > 0 ? (lead + rows - 1) / height + 1 : 0; }
};

// The rows `first` to `end` of the T queries behind `past` places, as tiles each of which lies
// within one block; a lone query is a tile of one row.
BlockTiles tiles_by_block(int64_t block, int64_t past, int64_t T, int64_t first, int64_t end);

// attend() where the rows of a tile see no keys but those of its blocks, and of these what the call
// allows; rows outside of the tiles see what the call allows. q [B,H,T,d], k [B,Hkv,S,d],
// v [B,Hkv,S,e] -> [B,H,T,e]. Tiles that pay no more, uniform heads, maps but the softmax and
// Backend::kEager take the map of all pairs.
Tensor attend_to_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const BlockTiles& tiles,
                        const HeadCall& call, double scale);

}  // namespace headlab
