// BigBird: every query sees a few global blocks of keys, its neighbours, and blocks drawn at
// random.
//
// Zaheer et al., "Big Bird: Transformers for Longer Sequences", arXiv 2007.14062, section 2 (ITC).
// The sequence is n = ceil(S / b) blocks of b tokens. The first ceil(g/2) and the last floor(g/2)
// blocks (causal: the first g) are global: their queries see all keys, and all queries see them.
// Another block i also sees the blocks j with |i - j| <= (w-1)/2 and, for each head, r blocks that
// a generator picks from (seed, head, i) among those it does not see yet (causal: those before it).
// The choice is the same in training and evaluation, and while decoding.
//
// Queries that are not global meet the blocks they see as one dense tile a block, so that time and
// memory grow with T, not with T S.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/attention/pair_scope.h"
#include "core/config/seed_option.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct BigBirdOptions : MhaOptions {
  int64_t block = 64, global_blocks = 2, window_blocks = 3, random_blocks = 3;
  SeedOption seed;

  void visit(Fields& f) override {
    f("block", block, "tokens a block; 0: no pattern, every key may be seen", at_least(0));
    f("global_blocks", global_blocks, "blocks that see all and are seen by all", at_least(0));
    f("window_blocks", window_blocks, "blocks seen around a block, itself included; odd",
      at_least(1));
    f("random_blocks", random_blocks, "blocks drawn for each head and block", at_least(0));
    f("seed", seed, "of the random blocks, 0 to 2^64 - 1");
    MhaOptions::visit(f);
  }
  void check(const Complain& complain) const override {
    if (window_blocks % 2 == 0)
      complain("window_blocks", fmt::format("must be odd, as many on either side: {} or {}",
                                            window_blocks - 1, window_blocks + 1));
  }
  HeadTraits traits() const override { return {.cross = false, .grouped = true}; }
};

// Which of n blocks of keys a block of queries sees.
class Pattern {
 public:
  Pattern(const BigBirdOptions& options, int64_t n, bool causal)
      : options_(options), n_(n), causal_(causal) {
    const int64_t g = options.global_blocks;
    front_ = std::min(n, causal ? g : g - g / 2);
    back_ = causal ? 0 : std::min(n - front_, g / 2);
  }

  // Blocks of queries that are not global: first_local() .. end_local() - 1.
  int64_t first_local() const { return front_; }
  int64_t end_local() const { return n_ - back_; }
  int64_t reachable(int64_t i) const { return causal_ ? i + 1 : n_; }

  // What block i of queries, not a global one, sees: global blocks and neighbours, ascending.
  std::set<int64_t> fixed(int64_t i) const {
    std::set<int64_t> blocks;
    const int64_t reach = options_.window_blocks / 2;
    for (int64_t j = 0; j < front_; ++j) blocks.insert(j);
    for (int64_t j = std::max<int64_t>(0, i - reach); j < std::min(reachable(i), i + reach + 1);
         ++j)
      blocks.insert(j);
    for (int64_t j = n_ - back_; j < n_; ++j) blocks.insert(j);
    return blocks;
  }

  // And the blocks that head h draws: a partial Fisher-Yates shuffle of the candidates, ascending,
  // by splitmix64. Only the candidates that the shuffle has moved are written down.
  std::vector<int64_t> random(int64_t h, int64_t i, const std::set<int64_t>& fixed) const {
    const int64_t limit = causal_ ? i : n_;
    const int64_t count = limit - std::distance(fixed.begin(), fixed.lower_bound(limit));
    uint64_t state = options_.seed.value ^ static_cast<uint64_t>(h) * 0x9E3779B97F4A7C15ull ^
                     static_cast<uint64_t>(i) * 0xBF58476D1CE4E5B9ull;
    std::map<int64_t, int64_t> moved;
    const auto at = [&](int64_t t) { return moved.contains(t) ? moved[t] : t; };
    std::vector<int64_t> blocks;
    for (int64_t t = 0; t < std::min(options_.random_blocks, count); ++t) {
      const int64_t other = t + static_cast<int64_t>(mix_bits(state) % (count - t));
      state += 0x9E3779B97F4A7C15ull;
      int64_t block = at(other);
      moved[other] = at(t);
      for (int64_t seen : fixed) block += seen <= block;
      blocks.push_back(block);
    }
    return blocks;
  }

 private:
  const BigBirdOptions& options_;
  int64_t n_, front_, back_;
  bool causal_;
};

// The query rows first .. first + rows - 1 are not global. Tile t holds `height` of them, from
// first - lead + t height, all of one block, with the blocks of keys that it sees.
struct Tiles {
  int64_t first = 0, rows = 0, lead = 0, height = 1, count = 0;
  Tensor blocks;  // [H,count,m], -1: none
  bool see_all = true;
};

class BigBird : public ProjectedHeads<BigBirdOptions> {
 public:
  using ProjectedHeads::ProjectedHeads;

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto& o = options_;
    const double seen = 1.0 * o.global_blocks + o.window_blocks + o.random_blocks;
    const double of_pattern = 1.0 * o.block * (T * seen + 1.0 * o.global_blocks * S);
    return projected_flops(T, S, o.block > 0 ? std::min(pairs, of_pattern) : pairs);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                              // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);            // [B,Hkv,S,d]
    return {.y = output(attend_to_blocks(q, k, v, call), call)};  // [B,T,D]
  }

  Tensor attend_to_blocks(const Tensor& q, const Tensor& k, const Tensor& v,
                          const HeadCall& call) const {
    const int64_t T = q.size(2), S = k.size(2), b = options_.block;
    // With a window the cache forgets: the first key is not at place 0.
    const int64_t first_key = (call.cache ? call.cache->length() : 0) + T - S;
    const auto tiles = b > 0 && q.numel() > 0 ? tile(call, q.size(1), T, first_key + S) : Tiles{};
    if (tiles.see_all) return attend(q, k, v, call, scale());
    // Tiles that would hold the dense map are no gain.
    const bool dense =
        tiles.blocks.size(2) * b >= S || call.backend == Backend::kEager || call.uniform.defined();
    const bool watched = call.observer && call.observer->wants_maps();
    Scope masked = call;  // keys beyond the pattern are hidden from what is observed, too
    if (dense || watched)
      masked.mask.allowed = both_allowed(call.mask.allowed, dense_mask(tiles, T, S, first_key));
    if (dense) return attend(q, k, v, call.within(masked), scale());
    const int64_t end = tiles.first + tiles.rows;
    const auto out = at::cat(
        {global_rows(q, k, v, call, 0, tiles.first), local_rows(q, k, v, call, tiles, first_key),
         global_rows(q, k, v, call, end, T - end)},
        2);  // [B,H,T,d]
    if (watched) call.observer->softmax({q, k, v, call.within(masked), scale()}, out);
    return out;
  }

  // The last T of `places` ask, in `heads` heads.
  Tiles tile(const HeadCall& call, int64_t heads, int64_t T, int64_t places) const {
    const int64_t b = options_.block, past = places - T;
    const Pattern pattern(options_, (places - 1) / b + 1, call.mask.causal);
    Tiles tiles;
    tiles.first = std::clamp<int64_t>(pattern.first_local() * b - past, 0, T);
    tiles.rows = std::clamp<int64_t>(pattern.end_local() * b - past, tiles.first, T) - tiles.first;
    if (tiles.rows == 0) return tiles;
    const int64_t start = past + tiles.first;
    if (T > 1) tiles.height = b, tiles.lead = start % b;
    tiles.count = (tiles.lead + tiles.rows - 1) / tiles.height + 1;

    const auto ids = call.head_ids.defined() ? call.head_ids.to(at::kCPU) : at::arange(heads);
    std::vector<std::vector<int64_t>> seen(heads * tiles.count);
    size_t most = 0;
    for (int64_t t = 0; t < tiles.count; ++t) {
      const int64_t i = start / b + t;
      const auto fixed = pattern.fixed(i);
      for (int64_t h = 0; h < heads; ++h) {
        auto& blocks = seen[h * tiles.count + t];
        blocks = pattern.random(ids.const_data_ptr<int64_t>()[h], i, fixed);
        blocks.insert(blocks.end(), fixed.begin(), fixed.end());
        tiles.see_all &= std::ssize(blocks) == pattern.reachable(i);
        most = std::max(most, blocks.size());
      }
    }
    auto blocks = at::full({heads * tiles.count, static_cast<int64_t>(most)}, -1, at::kLong);
    for (size_t n = 0; n < seen.size(); ++n)
      std::copy(seen[n].begin(), seen[n].end(), blocks.data_ptr<int64_t>() + n * most);
    tiles.blocks =
        blocks.view({heads, tiles.count, -1}).to(call.positions.device());  // [H,count,m]
    return tiles;
  }

  // The pattern of every pair of query and key: bool [H,T,S].
  Tensor dense_mask(const Tiles& tiles, int64_t T, int64_t S, int64_t first_key) const {
    const auto& blocks = tiles.blocks;
    const auto index = blocks.options();
    const int64_t n = (first_key + S - 1) / options_.block + 1;
    // "None" goes to a column behind the others.
    auto sees = at::zeros({blocks.size(0), tiles.count, n + 1}, index.dtype(at::kBool));
    sees.scatter_(2, blocks.masked_fill(blocks < 0, n), true);
    const auto tile_of = (at::arange(tiles.rows, index) + tiles.lead).floor_divide(tiles.height);
    const auto block_of = (at::arange(S, index) + first_key).floor_divide(options_.block);
    auto mask = at::ones({blocks.size(0), T, S}, index.dtype(at::kBool));
    mask.narrow(1, tiles.first, tiles.rows)
        .copy_(sees.index_select(1, tile_of).index_select(2, block_of));  // [H,rows,S]
    return mask;
  }

  // Rows of global blocks, which see every key that call allows: [B,H,count,d].
  Tensor global_rows(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                     int64_t first, int64_t count) const {
    const auto rows = q.narrow(2, first, count);
    if (count == 0) return rows;
    const int64_t H = q.size(1), T = q.size(2), S = k.size(2);
    const int64_t last = call.mask.causal ? S - T + first + count : S;  // no later key is seen
    const auto index = call.positions.options();
    const Pairs pairs{at::arange(H, index).view({H, 1, 1}),
                      at::arange(first, first + count, index).unsqueeze(1),
                      at::arange(last, index)};
    const auto own =
        call.within(scope_of_pairs(call, pairs, T, S)).with_draws(1 + first).unobserved();
    return attend(rows, k.narrow(2, 0, last), v.narrow(2, 0, last), own, scale());
  }

  // The other rows, a block of them against the blocks that it sees: [B,H,rows,d].
  Tensor local_rows(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                    const Tiles& tiles, int64_t first_key) const {
    const int64_t B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2), b = options_.block;
    const int64_t n = tiles.count, height = tiles.height, m = tiles.blocks.size(2);
    const auto index = tiles.blocks.options();
    const auto i = at::arange(n * height, index) + (tiles.first - tiles.lead);
    const auto j = (tiles.blocks * b).unsqueeze(-1) + at::arange(b, index) - first_key;
    const Pairs pairs{at::arange(H, index).view({H, 1, 1, 1}), i.view({n, height, 1}),
                      j.view({H, n, 1, m * b})};
    const auto real = (pairs.j >= 0) & (pairs.j < S);  // [H,n,1,m*b]
    auto own = scope_of_pairs(call, pairs, T, S, real);
    for (auto* t : {&own.mask.allowed, &own.bias}) {
      if (!t->defined()) continue;
      const auto whole = t->dim() < 5 ? t->unsqueeze(0) : *t;
      *t = whole.expand({-1, H, n, -1, -1}).flatten(1, 2);  // [B,H*n,height,m*b]
    }
    const auto rows = at::constant_pad_nd(
        q.narrow(2, tiles.first, tiles.rows),
        {0, 0, tiles.lead, n * height - tiles.lead - tiles.rows});  // [B,H,n*height,d]
    const auto gather = [&](const Tensor& kv) {
      return T == 1 ? seen_rows(kv, call, j) : seen_blocks(kv, call, tiles, first_key);
    };
    const auto out = attend(rows.reshape({B, H * n, height, -1}), gather(k), gather(v),
                            call.of_other_heads(own), scale());
    return out.reshape({B, H, n * height, -1}).narrow(2, tiles.lead, tiles.rows);
  }

  // Keys or values [B,Hkv,S,d] of the blocks that each tile sees: [B,H*count,m*b,d].
  Tensor seen_blocks(const Tensor& kv, const HeadCall& call, const Tiles& tiles,
                     int64_t first_key) const {
    const int64_t B = kv.size(0), groups = kv.size(1), S = kv.size(2), d = kv.size(3);
    const int64_t H = tiles.blocks.size(0), b = options_.block, lead = first_key % b;
    const int64_t blocks = (lead + S - 1) / b + 1;
    const auto padded = at::constant_pad_nd(kv, {0, 0, lead, blocks * b - lead - S});
    // Blocks that are none, or that the cache has forgotten, are hidden: any will do.
    const auto own =
        (tiles.blocks - first_key / b).clamp_min(0) +
        kv_heads(call, H, groups, kv.device()).view({H, 1, 1}) * blocks;  // [H,count,m]
    return padded.reshape({B, groups * blocks, b * d})
        .index_select(1, own.flatten())
        .view({B, H * tiles.count, -1, d});
  }

  // The same for one query, which need not touch all that a cache holds. j: key rows [H,1,m,b].
  static Tensor seen_rows(const Tensor& kv, const HeadCall& call, const Tensor& j) {
    const int64_t H = j.size(0);
    const auto rows = j.clamp(0, kv.size(2) - 1).view({H, -1});
    const auto groups = kv_heads(call, H, kv.size(1), kv.device()).view({H, 1});
    return kv.index({at::indexing::Slice(), groups, rows});  // [B,H,m*b,d]
  }
};

const RegisterHeads<BigBird> registered("bigbird",
                                        "sparse attention: global, neighbouring and random blocks");

}  // namespace
}  // namespace headlab
