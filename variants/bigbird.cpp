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

#include "core/attention/tiles/block_tiles.h"
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
  HeadTraits traits() const override { return plain({.cross = false, .grouped = true}); }
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
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const auto tiles = options_.block > 0 && q.numel() > 0 ? tile(call, q.size(2)) : BlockTiles{};
    return {.y = output(attend_to_blocks(q, k, v, tiles, call, scale()), v, call)};  // [B,T,D]
  }

  // The T queries ask; rows of global blocks are in no tile.
  BlockTiles tile(const HeadCall& call, int64_t T) const {
    const int64_t b = options_.block, past = past_places(call);
    const Pattern pattern(options_, (past + T - 1) / b + 1, call.mask.causal);
    const int64_t first = std::clamp<int64_t>(pattern.first_local() * b - past, 0, T);
    auto tiles = tiles_by_block(b, past, T, first,
                                std::clamp<int64_t>(pattern.end_local() * b - past, first, T));
    const auto ids = head_ids();
    const int64_t heads = std::ssize(ids);
    std::vector<std::vector<int64_t>> seen(heads * tiles.count());
    size_t most = 0;
    bool see_all = true;
    for (int64_t t = 0; t < tiles.count(); ++t) {
      const int64_t i = (past + first) / b + t;
      const auto fixed = pattern.fixed(i);
      for (int64_t h = 0; h < heads; ++h) {
        auto& blocks = seen[h * tiles.count() + t];
        blocks = pattern.random(ids[h], i, fixed);
        blocks.insert(blocks.end(), fixed.begin(), fixed.end());
        see_all &= std::ssize(blocks) == pattern.reachable(i);
        most = std::max(most, blocks.size());
      }
    }
    if (see_all) return tiles;
    auto blocks = at::full({1, heads, tiles.count(), static_cast<int64_t>(most)}, -1, at::kLong);
    for (size_t n = 0; n < seen.size(); ++n)
      std::copy(seen[n].begin(), seen[n].end(), blocks.data_ptr<int64_t>() + n * most);
    tiles.blocks = blocks.to(call.positions.device());
    return tiles;
  }
};

const RegisterHeads<BigBird> registered("bigbird",
                                        "sparse attention: global, neighbouring and random blocks");

}  // namespace
}  // namespace headlab
