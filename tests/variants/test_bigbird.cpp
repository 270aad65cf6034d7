// BigBird: the pattern against the recipe written down plainly, slices, statistics, options.
#include <set>

#include "experiments/analysis/maps/patterns.h"
#include "tests/bigbird_testing.h"
#include "tests/catch.h"

namespace headlab::test_bigbird {
using namespace testing;

namespace {

// The blocks of one token that head h sees from row i beyond globals and window.
std::set<int64_t> drawn(const Tensor& map, int64_t h, int64_t i, const std::set<int64_t>& fixed) {
  std::set<int64_t> blocks;
  for (int64_t j = 0; j < map.size(3); ++j)
    if (map[0][h][i][j].item<double>() > 0 && !fixed.count(j)) blocks.insert(j);
  return blocks;
}

std::string complaint_of(const std::string& options) {
  try {
    make_layer("bigbird", small_shape(), options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("bigbird draws the blocks of the recipe's examples", "[bigbird]") {
  REQUIRE(mix_bits(0) == 0xe220a8397b1dcdafull);
  REQUIRE(mix_bits(0x9E3779B97F4A7C15ull) == 0x6e789e6aa1b965f4ull);
  REQUIRE(mix_bits(2 * 0x9E3779B97F4A7C15ull) == 0x06c45d188009454full);

  using Set = std::set<int64_t>;
  const auto layer = make_layer("bigbird", small_shape(), Blocks{1, 2, 3, 2, 7}.options());
  const auto map = run(layer, random({1, 14, 20})).map;
  REQUIRE(drawn(map, 0, 1, {0, 13, 1, 2}) == Set{7, 5});
  REQUIRE(drawn(map, 0, 2, {0, 13, 1, 2, 3}) == Set{6, 5});
  REQUIRE(drawn(map, 0, 7, {0, 13, 6, 7, 8}) == Set{5, 1});
  REQUIRE(drawn(map, 1, 1, {0, 13, 1, 2}) == Set{8, 10});
  REQUIRE(drawn(map, 1, 2, {0, 13, 1, 2, 3}) == Set{10, 8});
  REQUIRE(drawn(map, 1, 7, {0, 13, 6, 7, 8}) == Set{1, 11});
  for (int64_t i : {0, 13}) REQUIRE(drawn(map, 0, i, {}).size() == 14);

  const auto later = make_layer("bigbird", small_shape(), Blocks{1, 1, 3, 2, 42}.options());
  const auto causal_map = run(later, random({1, 9, 20}), causal()).map;
  REQUIRE(drawn(causal_map, 0, 3, {0, 2, 3}) == Set{1});
  REQUIRE(drawn(causal_map, 0, 4, {0, 3, 4}) == Set{2, 1});
  REQUIRE(drawn(causal_map, 0, 5, {0, 4, 5}) == Set{3, 1});
  REQUIRE(drawn(causal_map, 0, 8, {0, 7, 8}) == Set{1, 5});
}

TEST_CASE("bigbird that sees every block is mha", "[bigbird]") {
  for (const char* options :
       {", block: 0", ", block: 3, random_blocks: 99", ", block: 3, window_blocks: 99",
        ", block: 3, global_blocks: 99", ", block: 99, random_blocks: 0, global_blocks: 0"})
    for (bool is_causal : {false, true}) {
      const auto layer = make_layer("bigbird", small_shape(4, 2), options);
      const auto mha = make_layer("mha", small_shape(4, 2));
      const auto x = random({2, 17, 20});
      const auto ctx = is_causal ? causal() : HeadContext{};
      REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
    }
}

TEST_CASE("bigbird inside another kind keeps the blocks of its original heads", "[bigbird]") {
  const auto layer =
      make_layer("gated", small_shape(4, 2), ", inner: {kind: bigbird" + kSmall.options() + "}");
  const auto x = random({2, 29, 20});
  layer->mask_heads({0, 2});
  REQUIRE(difference(layer->slice()->forward(x).y, layer->forward(x).y) < 1e-12);
}

TEST_CASE("statistics of bigbird are those of its map", "[bigbird]") {
  for (bool is_causal : {false, true}) {
    const auto layer = make_layer("bigbird", small_shape(), kSmall.options());
    const auto x = random({2, 29, 20});
    auto ctx = is_causal ? causal() : HeadContext{};
    const auto silent = layer->forward(x, ctx).y;
    HeadProbe probe;
    probe.statistics = probe.maps = true;
    probe.js_stride = 1;
    ctx.observer = &probe;
    REQUIRE(difference(layer->forward(x, ctx).y, silent) == 0);
    MapContext context;
    context.causal = is_causal;
    context.allowed = pattern(kSmall, 4, 29, is_causal);
    HeadSums sums(4);
    add_patterns(sums, probe.layer_maps().at(1), context);
    auto want = head_values(sums), got = probe.values(1);
    for (const char* name : {"entropy", "entropy_normalized", "max_weight", "mean_distance",
                             "signed_offset", "self_token", "first_token", "participation_ratio"})
      for (int64_t h = 0; h < 4; ++h) {
        INFO(name);
        REQUIRE(got[name][h] == Approx(want[name][h]).epsilon(1e-10));
      }
    for (int64_t pair = 0; pair < 16; ++pair)
      REQUIRE(got["js"][pair] == Approx(want["js"][pair]).epsilon(1e-9).margin(1e-12));
  }
}

TEST_CASE("bigbird refuses what is no pattern and takes every seed of 64 bits", "[bigbird]") {
  REQUIRE_THAT(complaint_of(", window_blocks: 4"),
               Catch::Contains("test:1:") &&
                   Catch::Contains("attention.window_blocks: must be odd") &&
                   Catch::Contains("3 or 5"));
  REQUIRE_THAT(complaint_of(", block: -1"), Catch::Contains("block: must be at least 0, is -1"));
  REQUIRE_THAT(complaint_of(", random_blocks: -1"), Catch::Contains("must be at least 0"));
  REQUIRE_THAT(complaint_of(", seed: -1"), Catch::Contains("seed: must be at least 0, is -1"));
  REQUIRE_THAT(complaint_of(", seed: 18446744073709551616"),
               Catch::Contains("seed: must be an integer of 64 bits"));
  REQUIRE_THAT(complaint_of(", seed: 1.5"), Catch::Contains("seed: must be an integer"));
  REQUIRE_THAT(complaint_of(", seed: \"7\""), Catch::Contains("seed: must be an integer"));
  for (const char* seed :
       {"0", "9223372036854775807", "9223372036854775808", "18446744073709551615"}) {
    REQUIRE(read_kind("bigbird", std::string(", seed: ") + seed).write().find("seed")->text ==
            seed);
  }
  const auto layer = make_layer("bigbird", small_shape());
  HeadContext ctx;
  ctx.memory = random({1, 5, 20});
  REQUIRE_THROWS_WITH(layer->forward(random({1, 7, 20}), ctx),
                      Catch::Contains("no cross-attention"));
}

TEST_CASE("bigbird's operations follow its pattern", "[bigbird]") {
  const auto flops = [](const std::string& kind, const std::string& options, int64_t T) {
    return make_layer(kind, small_shape(), options)->flops(T, T, static_cast<double>(T * T));
  };
  const Blocks o{8, 2, 3, 3, 0};
  const double T = 1000, projections = 8 * T * 20 * 24;
  REQUIRE(flops("bigbird", o.options(), 1000) ==
          Approx(projections + 4 * T * 8 * 8 * 24 + 4 * 2 * 8 * T * 24));
  REQUIRE(flops("bigbird", o.options(), 60) == flops("mha", "", 60));
  REQUIRE(flops("bigbird", ", block: 0", 1000) == flops("mha", "", 1000));
}

}  // namespace headlab::test_bigbird
