// Tiles of queries over lists of blocks: the numbers of the map of all pairs, whoever made the
// lists.
#include <torch/csrc/autograd/autograd.h>

#include "core/attention/tiles/block_tiles.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_block_tiles {
using namespace testing;

namespace {

constexpr int64_t B = 2, H = 4, Hkv = 2, d = 6, e = 5, kBlock = 3;

// T queries behind `past` places, of which the cache has kept the last `kept`.
struct Case {
  int64_t T, past = 0, kept = 0;
  int64_t S() const { return kept + T; }
  int64_t first_key() const { return past - kept; }
};

// `m` blocks a tile, some of them none, beyond the keys or before them, none of them twice.
Tensor random_blocks(int64_t examples, int64_t n, int64_t m, int64_t blocks) {
  const auto order = at::rand({examples, H, n, blocks + 1}).argsort(int64_t{-1}).narrow(-1, 0, m);
  return at::where(at::rand(order.sizes()) < 0.2, -1, order);
}

// The definition: key j is seen where its block is in the list of the query's tile.
Tensor seen_pairs(const BlockTiles& tiles, const Case& c) {
  auto seen = at::ones({tiles.blocks.size(0), H, c.T, c.S()}, at::kBool);
  for (int64_t i = tiles.first; i < tiles.first + tiles.rows; ++i) {
    const int64_t tile = (i - tiles.first + tiles.lead) / tiles.height;
    for (int64_t j = 0; j < c.S(); ++j) {
      const int64_t block = (c.first_key() + j) / tiles.block;
      seen.select(2, i).select(2, j).copy_((tiles.blocks.select(2, tile) == block).any(-1));
    }
  }
  return seen;
}

struct Numbers {
  Tensor out;
  std::vector<Tensor> gradients;
};

void require_same(const Numbers& got, const Numbers& want) {
  REQUIRE(difference(got.out, want.out) < 1e-12);
  for (size_t n = 0; n < want.gradients.size(); ++n)
    REQUIRE(difference(got.gradients[n], want.gradients[n]) < 1e-12);
}

void require_tiles_equal_map(const Case& c, const BlockTiles& tiles, HeadContext ctx) {
  LayerCache cache;
  if (c.past > 0) {
    cache.append("k", random({B, Hkv, c.past, d}));
    cache.advance(c.past);
    ctx.cache = &cache;
  }
  ctx.positions = at::arange(c.past, c.past + c.T);
  std::vector<Tensor> inputs{random({B, H, c.T, d}), random({B, Hkv, c.S(), d}),
                             random({B, Hkv, c.S(), e})};
  if (ctx.bias.defined()) inputs.push_back(ctx.bias);
  for (auto& t : inputs) t.requires_grad_();
  const auto cotangent = random({B, H, c.T, e});
  const auto differentiated = [&](const Tensor& out) {
    return Numbers{out, torch::autograd::grad({(out * cotangent).sum()}, inputs)};
  };
  const auto call = HeadCall::from_context(ctx);
  const auto got =
      differentiated(attend_to_blocks(inputs[0], inputs[1], inputs[2], tiles, call, /*scale=*/0.4));
  auto masked = ctx;
  masked.mask.allowed = both_allowed(ctx.mask.allowed, seen_pairs(tiles, c));
  masked.backend = Backend::kEager;
  require_same(got, differentiated(attend(inputs[0], inputs[1], inputs[2],
                                          HeadCall::from_context(masked), 0.4)));
  auto eager = ctx;
  eager.backend = Backend::kEager;
  require_same(got, differentiated(attend_to_blocks(inputs[0], inputs[1], inputs[2], tiles,
                                                    HeadCall::from_context(eager), 0.4)));
}

// Masks and biases, each of them alone and all of them.
std::vector<HeadContext> contexts(const Case& c) {
  std::vector<HeadContext> all(6);
  const auto length = at::tensor({c.S(), c.S() - 3});
  const auto allowed = at::rand({B, H, c.T, c.S()}) < 0.7;
  all[1] = causal();
  all[2] = causal(7);
  all[3].mask.key_length = length;
  all[3].mask.allowed = at::rand({1, 1, 1, c.S()}) < 0.7;
  all[4].bias = random({1, H, c.T, c.S()});
  all[5] = causal();
  all[5].mask.key_length = length, all[5].mask.allowed = allowed;
  all[5].bias = random({B, 1, c.T, c.S()});
  return all;
}

}  // namespace

TEST_CASE("tiles over listed blocks are the map of all pairs, with lists by example or for all",
          "[tiles]") {
  torch::manual_seed(2);
  const Alibi alibi(H, at::kDouble);
  for (const Case& c :
       {Case{29}, Case{11, 20, 20}, Case{11, 20, 13}, Case{1, 40, 40}, Case{1, 40, 31}})
    for (const int64_t examples : {int64_t{1}, B})
      for (const int64_t height : {int64_t{1}, kBlock}) {
        INFO(c.T << " queries behind " << c.past << " places, " << c.kept << " kept, lists for "
                 << examples << ", height " << height);
        const int64_t first = c.T > 5 ? 2 : 0, end = c.T > 5 ? c.T - 3 : c.T;
        auto tiles = tiles_by_block(kBlock, c.past, c.T, first, end);
        if (height == 1) tiles.height = 1, tiles.lead = 0;
        const int64_t blocks = (c.past + c.T - 1) / kBlock + 1;
        tiles.blocks = random_blocks(examples, tiles.count(), 3, blocks);
        for (const auto& ctx : contexts(c)) {
          require_tiles_equal_map(c, tiles, ctx);
          auto biased = ctx;
          biased.position_bias = &alibi;
          require_tiles_equal_map(c, tiles, biased);
        }
      }
}

TEST_CASE("tiles by block end where blocks do", "[tiles]") {
  const auto tiles = tiles_by_block(/*block=*/4, /*past=*/5, /*T=*/12, /*first=*/1, /*end=*/10);
  REQUIRE(tiles.lead == 2);  // place 6 is the third of its block
  REQUIRE(tiles.height == 4);
  REQUIRE(tiles.count() == 3);  // places 6, 7; 8 to 11; 12 to 14
  REQUIRE(tiles_by_block(4, 5, /*T=*/1, 0, 1).count() == 1);
  REQUIRE(tiles_by_block(4, 5, 12, 3, 3).count() == 0);
}

TEST_CASE("tiles without lists are attend(), and maps but the softmax are taken", "[tiles]") {
  const auto q = random({B, H, 9, d}), k = random({B, Hkv, 9, d}), v = random({B, Hkv, 9, e});
  auto ctx = causal();
  ctx.positions = at::arange(9);
  auto call = HeadCall::from_context(ctx);
  REQUIRE(difference(attend_to_blocks(q, k, v, {}, call, 0.4), attend(q, k, v, call, 0.4)) == 0);
  auto tiles = tiles_by_block(kBlock, 0, 9, 0, 9);
  tiles.blocks = at::arange(3).view({1, 1, 3, 1}).expand({1, H, 3, 1});  // each its own
  call.uniform = at::arange(H).remainder(2) == 0;
  const auto out = attend_to_blocks(q, k, v, tiles, call, 0.4);
  REQUIRE(difference(out.select(2, 7).select(1, 0), v.narrow(2, 6, 2).mean(2).select(1, 0)) <
          1e-12);
}

}  // namespace headlab::test_block_tiles
