// Stick-breaking heads while decoding and sliced, their statistics, cost and options.
#include "tests/stickbreaking_testing.h"

namespace headlab::test_stickbreaking_calls {
using namespace testing;

TEST_CASE("few new tokens, which hold their map, say what the parallel pass says",
          "[stickbreaking]") {
  at::NoGradGuard no_grad;
  const auto x = random({kBatch, 24, 20});
  const Alibi alibi(kHeads, at::kDouble);
  for (const auto& remainder : kRemainders)
    for (const int64_t window : {0, 5}) {
      INFO(remainder << ", window " << window);
      const auto layer = make_layer("stickbreaking", small_shape(4, 2), with(remainder, false));
      auto ctx = causal(window);
      ctx.position_bias = &alibi;
      const auto whole = layer->forward(x, ctx).y;
      LayerCache cache;
      ctx.cache = &cache;
      int64_t at = 0;
      for (const int64_t chunk : {9, 1, 8, 2, 1, 3}) {
        const auto y = layer->forward(x.narrow(1, at, chunk), ctx).y;
        REQUIRE(difference(y, whole.narrow(1, at, chunk)) < 1e-12);
        at += chunk;
      }
    }
}

TEST_CASE("a cache of stick-breaking heads is that of plain heads", "[stickbreaking]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("stickbreaking", small_shape(4, 2));
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  layer->forward(random({1, 9, 20}), ctx);
  REQUIRE(cache.bytes() == 9 * 2 * 2 * 6 * static_cast<int64_t>(sizeof(double)));
}

TEST_CASE("a slice has its rows of the learned rest and of the norm", "[stickbreaking]") {
  const auto layer = make_layer("stickbreaking", small_shape(), ", remainder: bias, norm: true");
  layer->mask_heads({1, 2});
  const auto sliced = layer->slice();
  REQUIRE(difference(parameter(sliced, "remainder"),
                     parameter(layer, "remainder").index_select(0, at::tensor({0, 3}))) == 0);
  REQUIRE(parameter(sliced, "norm.bias").sizes() == at::IntArrayRef({12}));
  const auto x = random({kBatch, kTokens, 20});
  for (const auto& ctx : {causal(), masked_context()})
    REQUIRE(difference(sliced->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
}

TEST_CASE("the mean rest is logged, and patterns are of what rows share out", "[stickbreaking]") {
  const auto x = random({kBatch, kTokens, 20});
  for (const auto& remainder : kRemainders) {
    INFO(remainder);
    const auto layer = make_layer("stickbreaking", small_shape(), with(remainder, false));
    const auto seen = run(layer, x, causal());
    const auto causal_keys = allowed_keys(causal().mask, kTokens, kTokens, at::kCPU);
    const auto z = scores_of(layer, x);
    auto [a, rest] = broken(z, causal_keys.expand_as(z), false);
    if (remainder == "value") {
      a.diagonal(0, 2, 3).add_(rest);
      require_statistics_of_map(layer, seen, heads_of(layer, x, "v.weight"));
    }
    REQUIRE(difference(seen.map, a) < 1e-13);
    REQUIRE(seen.statistics.count("row_sum") == (remainder == "value" ? 0 : 1));
    for (int64_t h = 0; h < kHeads; ++h) {
      CHECK(seen.statistics.at("remainder_mean")[h] ==
            Approx(rest.select(1, h).mean().item<double>()));
      if (remainder != "value")
        CHECK(seen.statistics.at("row_sum")[h] ==
              Approx(a.sum(-1).select(1, h).mean().item<double>()));
    }
  }
}

TEST_CASE("stick-breaking heads begin as plain heads, with a learned rest of 0",
          "[stickbreaking]") {
  const auto layer = fresh("stickbreaking", small_shape(), ", remainder: bias, norm: true");
  CHECK(parameter(layer, "remainder").abs().max().item<double>() == 0);
  CHECK(parameter(layer, "norm.weight").eq(1).all().item<bool>());
  CHECK(parameter(layer, "norm.bias").abs().max().item<double>() == 0);
}

TEST_CASE("stick-breaking costs what multi-head attention costs", "[stickbreaking]") {
  const auto mha = make_layer("mha", small_shape(4, 2));
  for (const char* options : {"", ", remainder: bias, norm: true"})
    CHECK(make_layer("stickbreaking", small_shape(4, 2), options)->flops(7, 7, 28) ==
          mha->flops(7, 7, 28));
}

TEST_CASE("stick-breaking heads refuse what they have not, by name", "[stickbreaking]") {
  const auto refused = [](const std::string& options, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_WITH(make_layer("stickbreaking", small_shape(), options),
                        Catch::Contains(message));
  };
  refused(", remainder: all", "attention.remainder");
  refused(", norm_eps: 0", "attention.norm_eps");
  refused(", map: sigmoid", "attention.map: unknown key");
  const auto plain = read_kind("stickbreaking", "");
  REQUIRE_THROWS_WITH(make_heads(plain, small_shape(), {.bidirectional = true}),
                      Catch::Contains("attention: 'stickbreaking' heads must be causal"));
  REQUIRE_THROWS_WITH(make_heads(plain, small_shape(), {.cross = true}),
                      Catch::Contains("'stickbreaking' heads have no cross-attention"));
  const auto layer = make_layer("stickbreaking", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE_THROWS_WITH(layer->forward(x), Catch::Contains("must be causal"));
  for (const auto backend : {Backend::kFlash, Backend::kSdpa}) {
    auto ctx = causal();
    ctx.backend = backend;
    REQUIRE_THROWS_WITH(layer->forward(x, ctx), Catch::Contains("maps other than the softmax"));
  }
}

}  // namespace headlab::test_stickbreaking_calls
