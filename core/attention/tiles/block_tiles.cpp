#include "core/attention/tiles/block_tiles.h"

#include "core/attention/attend.h"
#include "core/attention/call/observer.h"
#include "core/attention/paths/thresholds.h"
#include "core/kernels/attention_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Indices of heads (this layer's rows), query rows and key rows. They broadcast together to
// [H, ...]; h is [H, 1, ...] with every dimension of the result. Where keys differ by example, j is
// [B or 1, H, ...].
struct Pairs {
  Tensor h, i, j;
};

// [n] -> [n,1,...], before what the pairs broadcast to.
Tensor by_example(const Tensor& t, const Pairs& pairs) {
  std::vector<int64_t> sizes(pairs.h.dim() + 1, 1);
  sizes[0] = -1;
  return t.view(sizes);
}

// The entries of t, which broadcasts to [B,H,T,S], at the pairs. What t is broadcast along stays 1
// where the other indices allow it.
Tensor pick(const Tensor& t, const Pairs& at) {
  auto full = t;
  while (full.dim() < 4) full = full.unsqueeze(0);
  const auto only = at::zeros({1}, at.h.options());
  const auto along = [&](int64_t dim, const Tensor& index) -> at::indexing::TensorIndex {
    return full.size(dim) == 1 ? only : index;
  };
  const auto b = by_example(at::arange(full.size(0), at.h.options()), at);
  return full.index({b, along(1, at.h), along(2, at.i), along(3, at.j)});
}

// The scope whose mask.allowed and bias are those of the call at the pairs, causality, window,
// lengths and position bias included: they broadcast to [B, H, ...]. Query row i of T stands at key
// row S - T + i. `real`: which of the pairs there are; rows outside of 0..T-1 and 0..S-1 may be
// named where it is false. Undefined: all.
Scope scope_of_pairs(const HeadCall& call, const Pairs& pairs, int64_t T, int64_t S,
                     const Tensor& real = {}) {
  Scope own;
  auto& allowed = own.mask.allowed = real;
  const auto meet = [&](const Tensor& more) { allowed = both_allowed(allowed, more); };
  const auto& [h, i, j] = pairs;
  const auto reach = key_reach(call.mask.causal, call.mask.window);
  if (const auto near = within_reach(j - i - (S - T), reach); near.defined()) meet(near);
  if (call.mask.key_length.defined())
    meet(j < by_example(call.mask.key_length.to(j.device()), pairs));
  const Pairs inside{h, i.clamp(0, T - 1), j.clamp(0, S - 1)};
  if (call.mask.allowed.defined()) meet(pick(call.mask.allowed, inside));
  if (call.bias.defined()) own.bias = pick(call.bias, inside);
  if (call.position_bias) {
    const auto table = biases_by_distance(call, T, S);  // [H,S+T-1]
    const auto column = inside.j - inside.i + (T - 1);  // of the distance j - place
    auto by_distance = table.index({h, column});
    if (by_distance.dim() == h.dim()) by_distance = by_distance.unsqueeze(0);
    own.bias = own.bias.defined() ? own.bias + by_distance : by_distance;
  }
  return own;
}

// One call and its tiles.
struct TiledCall {
  const Tensor &q, &k, &v;
  const BlockTiles& tiles;
  const HeadCall& call;
  double scale;
  int64_t first_key;  // with a window the cache forgets: the first key is not at place 0

  int64_t T() const { return q.size(2); }
  int64_t S() const { return k.size(2); }
};

// Whether each pair lies in the tiles' blocks: bool [B or 1,H,T,S].
Tensor dense_mask(const TiledCall& all) {
  const auto& tiles = all.tiles;
  const auto& blocks = tiles.blocks;
  const auto index = blocks.options();
  const int64_t T = all.T(), S = all.S(), n = (all.first_key + S - 1) / tiles.block + 1;
  // What is no block of these keys goes to a column behind the others.
  auto sees =
      at::zeros({blocks.size(0), blocks.size(1), tiles.count(), n + 1}, index.dtype(at::kBool));
  sees.scatter_(3, blocks.masked_fill((blocks < 0) | (blocks > n), n), true);
  const auto tile_of = (at::arange(tiles.rows, index) + tiles.lead).floor_divide(tiles.height);
  const auto block_of = (at::arange(S, index) + all.first_key).floor_divide(tiles.block);
  auto mask = at::ones({blocks.size(0), blocks.size(1), T, S}, index.dtype(at::kBool));
  mask.narrow(2, tiles.first, tiles.rows)
      .copy_(sees.index_select(2, tile_of).index_select(3, block_of));  // [..,rows,S]
  return mask;
}

// Rows outside of the tiles, which see every key that the call allows: [B,H,count,e].
Tensor untiled_rows(const TiledCall& all, int64_t first, int64_t count) {
  const auto& [q, k, v, tiles, call, scale, first_key] = all;
  const auto rows = q.narrow(2, first, count);
  if (count == 0) return q.new_empty({q.size(0), q.size(1), 0, v.size(3)});
  const int64_t H = q.size(1), T = all.T(), S = all.S();
  const int64_t last = call.mask.causal ? S - T + first + count : S;  // no later key is seen
  const auto index = call.positions.options();
  const Pairs pairs{at::arange(H, index).view({H, 1, 1}),
                    at::arange(first, first + count, index).unsqueeze(1), at::arange(last, index)};
  const auto own = call.within(scope_of_pairs(call, pairs, T, S)).with_seed(1 + first).unobserved();
  return attend(rows, k.narrow(2, 0, last), v.narrow(2, 0, last), own, scale);
}

// Keys or values [B,Hkv,S,d] of the blocks that each tile sees: [B,H*n,m*b,d].
Tensor seen_blocks(const TiledCall& all, const Tensor& kv) {
  const auto& blocks = all.tiles.blocks;
  const int64_t B = kv.size(0), groups = kv.size(1), S = kv.size(2), d = kv.size(3);
  const int64_t H = blocks.size(1), b = all.tiles.block, lead = all.first_key % b;
  const int64_t kept = (lead + S - 1) / b + 1;
  const auto padded = at::constant_pad_nd(kv, {0, 0, lead, kept * b - lead - S});
  // Blocks that are none, or that the cache has forgotten, are hidden: any will do.
  auto own =
      (blocks - all.first_key / b).clamp(0, kept - 1) +
      kv_heads(all.call.kv_map, H, groups, kv.device()).view({H, 1, 1}) * kept;  // [B or 1,H,n,m]
  // A list for all examples is one selection; lists of each example's own select in all of them.
  const bool shared = own.size(0) == 1;
  if (!shared) own = own + at::arange(B, own.options()).view({B, 1, 1, 1}) * (groups * kept);
  return padded.reshape({shared ? B : 1, -1, b * d})
      .index_select(1, own.flatten())
      .view({B, H * all.tiles.count(), -1, d});
}

// The same for one query, which need not touch all that a cache holds. j: key rows [B or
// 1,H,1,m,b].
Tensor seen_rows(const TiledCall& all, const Tensor& kv, const Tensor& j) {
  const int64_t H = j.size(1);
  const auto rows = j.clamp(0, kv.size(2) - 1).view({j.size(0), H, -1});
  const auto groups = kv_heads(all.call.kv_map, H, kv.size(1), kv.device()).view({H, 1});
  if (j.size(0) == 1) return kv.index({at::indexing::Slice(), groups, rows[0]});  // [B,H,m*b,d]
  return kv.index({at::arange(kv.size(0), j.options()).view({-1, 1, 1}), groups, rows});
}

// The rows in tiles, each tile of them against the blocks that it sees: [B,H,rows,e].
Tensor tiled_rows(const TiledCall& all) {
  const auto& [q, k, v, tiles, call, scale, first_key] = all;
  const int64_t B = q.size(0), H = q.size(1), T = all.T(), S = all.S(), b = tiles.block;
  const int64_t n = tiles.count(), height = tiles.height, m = tiles.blocks.size(3);
  const auto index = tiles.blocks.options();
  const auto i = at::arange(n * height, index) + (tiles.first - tiles.lead);
  const auto j = (tiles.blocks * b).unsqueeze(-1) + at::arange(b, index) - first_key;
  const Pairs pairs{at::arange(H, index).view({H, 1, 1, 1}), i.view({n, height, 1}),
                    j.view({-1, H, n, 1, m * b})};
  const auto real = (pairs.j >= 0) & (pairs.j < S);  // [B or 1,H,n,1,m*b]
  auto own = scope_of_pairs(call, pairs, T, S, real);
  for (auto* t : {&own.mask.allowed, &own.bias})
    if (t->defined()) *t = t->expand({-1, H, n, -1, -1}).flatten(1, 2);  // [B,H*n,height,m*b]
  const auto rows = at::constant_pad_nd(
      q.narrow(2, tiles.first, tiles.rows),
      {0, 0, tiles.lead, n * height - tiles.lead - tiles.rows});  // [B,H,n*height,d]
  const auto seen = [&](const Tensor& kv) {
    return T == 1 ? seen_rows(all, kv, j) : seen_blocks(all, kv);
  };
  const auto out = attend(rows.reshape({B, H * n, height, -1}), seen(k), seen(v),
                          call.for_made_up_heads(own), scale);
  return out.reshape({B, H, n * height, -1}).narrow(2, tiles.lead, tiles.rows);
}

}  // namespace

BlockTiles tiles_by_block(int64_t block, int64_t past, int64_t T, int64_t first, int64_t end) {
  BlockTiles tiles{.block = block, .first = first, .rows = end - first};
  if (T > 1) tiles.height = block, tiles.lead = (past + first) % block;
  return tiles;
}

Tensor attend_to_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const BlockTiles& tiles,
                        const HeadCall& call, double scale) {
  if (!tiles.blocks.defined()) return attend(q, k, v, call, scale);
  const int64_t T = q.size(2), S = k.size(2);
  const TiledCall all{q, k, v, tiles, call, scale, past_places(call) + T - S};
  // Tiles that would hold much of the dense map are no gain.
  const bool dense = tiles.blocks.size(3) * tiles.block >= threshold::kLargestTiledShare * S ||
                     call.backend == Backend::kEager || call.uniform.defined() ||
                     !call.map->is_softmax();
  const bool watched = call.observer && call.observer->wants_maps();
  Scope masked = call;  // keys beyond the blocks are hidden from what is observed, too
  if (dense || watched) masked.mask.allowed = both_allowed(call.mask.allowed, dense_mask(all));
  if (dense) return attend(q, k, v, call.within(masked), scale);
  const int64_t end = tiles.first + tiles.rows;
  const auto out =
      at::cat({untiled_rows(all, 0, tiles.first), tiled_rows(all), untiled_rows(all, end, T - end)},
              2);  // [B,H,T,e]
  if (watched) call.observer->softmax({q, k, v, call.within(masked), scale}, out);
  return out;
}

}  // namespace headlab
