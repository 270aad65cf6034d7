// Tensor product heads: the sums written out, what the cache holds, factors met by few queries,
// reductions to grouped-query attention, symmetries, beginnings, options.
#include "tests/layers_testing.h"

namespace headlab::test_tpa {
using namespace testing;

namespace {

constexpr int64_t D = 20, d = 6;

// 1/R sum_s a_hs turn(b_s), head by head: [B,H,T,d].
Tensor summed(const Layer& layer, const Tensor& x, const std::string& name, int64_t rank,
              const Rotary* rotary) {
  const auto a = at::linear(x, parameter(layer, name + "_a.weight")),
             b = at::linear(x, parameter(layer, name + "_b.weight"));
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < kHeads; ++h) {
    auto sum = at::zeros({x.size(0), x.size(1), d}, at::kDouble);
    for (int64_t s = 0; s < rank; ++s)
      sum = sum + a.narrow(2, h * rank + s, 1) * b.narrow(2, s * d, d);
    heads.push_back(sum / static_cast<double>(rank));
  }
  const auto all = at::stack(heads, 1);
  return rotary ? rotary->rotate(all, at::arange(x.size(1), at::kLong)) : all;
}

Tensor output_of(const Layer& layer, const Tensor& heads) {
  return at::linear(heads.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
}

void scale_weight(const Layer& layer, const std::string& name, double by) {
  at::NoGradGuard no_grad;
  parameter(layer, name).mul_(by);
}

// Its ranks in another order: of rows [H*R,D] or [R*d,D].
void reverse_ranks(const Layer& layer, const std::string& name, int64_t outer, int64_t rank) {
  const auto w = parameter(layer, name).detach().clone();
  set(layer, name, w.view({outer, rank, -1}).flip(1).view(w.sizes()));
}

}  // namespace

TEST_CASE("queries, keys and values are means of products of two factors", "[tpa]") {
  const Rotary half(10000, RopeLayout::kHalf, 0.7);
  for (const std::string norm : {"false", "true"}) {
    const auto layer =
        make_layer("tpa", small_shape(), ", q_rank: 3, k_rank: 2, v_rank: 5, norm: " + norm);
    const auto x = random({kBatch, kTokens, D});
    auto ctx = masked_context();
    ctx.rotary = &half;
    const auto q = summed(layer, x, "q", 3, &half), k = summed(layer, x, "k", 2, &half),
               v = summed(layer, x, "v", 5, nullptr);
    const auto a = masked_softmax(at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.) + ctx.bias,
                                  allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU));
    auto heads = at::matmul(a, v);
    if (norm == "true")
      heads =
          heads * (heads.square().mean(-1, true) + 1e-5).rsqrt() * parameter(layer, "norm.weight");
    REQUIRE(difference(map_of(*layer, x, ctx), a) < 1e-12);
    REQUIRE(relative_difference(layer->forward(x, ctx).y, output_of(layer, heads)) < 1e-12);
  }
}

TEST_CASE("the cache of tensor product heads holds the factors of keys and values", "[tpa]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("tpa", small_shape(), ", k_rank: 2, v_rank: 3");
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  layer->forward(random({1, 9, D}), ctx);
  layer->forward(random({1, 1, D}), ctx);
  REQUIRE(cache.bytes() == 10 * (2 + 3) * (kHeads + d) * static_cast<int64_t>(sizeof(double)));
}

TEST_CASE("few queries that meet the factors say what joined keys and values say", "[tpa]") {
  at::NoGradGuard no_grad;
  for (const std::string norm : {"false", "true"}) {
    const auto layer =
        make_layer("tpa", small_shape(), ", q_rank: 1, k_rank: 3, v_rank: 2, norm: " + norm);
    const auto [by_factors, joined] = last_token_both_ways(*layer, random({kBatch, 20, D}));
    REQUIRE(relative_difference(by_factors, joined) < 1e-12);
    REQUIRE_FALSE(at::equal(by_factors, joined));  // by another way
  }
}

TEST_CASE("by factors the same weights are dropped, with the same gradients", "[tpa]") {
  auto shape = small_shape();
  shape.dropout = 0.4;
  const auto layer = make_layer("tpa", shape, ", q_rank: 1, k_rank: 3, v_rank: 2");
  layer->train();
  const auto x = random({kBatch, 1, D});
  auto ctx = HeadContext{};
  ctx.memory = random({kBatch, 11, D});
  ctx.rng = {.seed = 2, .step = 1};
  const auto by_factors = gradients(*layer, x, ctx);
  HeadProbe probe;
  ctx.observer = &probe;
  const auto joined = gradients(*layer, x, ctx);
  REQUIRE(relative_difference(by_factors.y, joined.y) < 1e-12);
  REQUIRE_FALSE(at::equal(by_factors.y, joined.y));
  for (const auto& [name, gradient] : joined.of) {
    INFO(name);
    REQUIRE(relative_difference(by_factors.of.at(name), gradient) < 1e-10);
  }
}

TEST_CASE("only the product of two factors counts, and not the order of ranks", "[tpa]") {
  const auto layer = make_layer("tpa", small_shape(), ", q_rank: 3, k_rank: 2, v_rank: 4");
  const auto x = random({kBatch, kTokens, D});
  const auto y = layer->forward(x, causal()).y;
  for (const std::string name : {"q", "k", "v"}) {
    scale_weight(layer, name + "_a.weight", 8), scale_weight(layer, name + "_b.weight", 1. / 8);
    REQUIRE(relative_difference(layer->forward(x, causal()).y, y) < 1e-13);
    const int64_t rank = name == "q" ? 3 : name == "k" ? 2 : 4;
    reverse_ranks(layer, name + "_a.weight", kHeads, rank);
    REQUIRE(difference(layer->forward(x, causal()).y, y) > 1e-3);
    reverse_ranks(layer, name + "_b.weight", 1, rank);
    REQUIRE(relative_difference(layer->forward(x, causal()).y, y) < 1e-13);
  }
}

TEST_CASE("factors of the heads that choose one rank make grouped-query attention", "[tpa]") {
  constexpr int64_t kv_heads = 2;
  const auto mha = make_layer("mha", small_shape(kHeads, kv_heads));
  const auto x = random({kBatch, kTokens, D});
  x.select(2, D - 1).fill_(1);  // which the factors of the heads alone read
  at::NoGradGuard no_grad;
  for (const char* name : {"q.weight", "k.weight", "v.weight"})
    parameter(mha, name).select(1, D - 1).zero_();
  for (const bool plain : {false, true}) {
    const auto layer =
        make_layer("tpa", small_shape(),
                   std::string(", k_rank: 2, v_rank: 2, q_rank: ") + (plain ? "0" : "4"));
    set(layer, "o.weight", parameter(mha, "o.weight"));
    for (const std::string name : {"q", "k", "v"}) {
      const auto& weight = parameter(mha, name + ".weight");
      if (name == "q" && plain) {
        set(layer, "q.weight", weight);
        continue;
      }
      const int64_t rank = name == "q" ? kHeads : kv_heads;
      set(layer, name + "_b.weight", weight);
      auto chosen = at::zeros({kHeads, rank, D}, at::kDouble);
      for (int64_t h = 0; h < kHeads; ++h) chosen[h][h / (kHeads / rank)][D - 1] = rank;
      set(layer, name + "_a.weight", chosen.view({kHeads * rank, D}));
    }
    const Rotary rotary;
    auto ctx = causal();
    ctx.rotary = &rotary;
    REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-13);
  }
}

TEST_CASE("tensor product heads begin by Xavier's bounds of their factors, and say nothing",
          "[tpa]") {
  torch::manual_seed(3);
  auto shape = small_shape();
  shape.d_model = 60;
  const auto layer = fresh("tpa", shape, "");
  const auto most = [&](const char* name) {
    return parameter(layer, name).abs().max().item<double>();
  };
  CHECK(most("q_a.weight") == Approx(std::sqrt(6. / ((4 + 60) * 6))).epsilon(0.02));
  CHECK(most("k_a.weight") == Approx(std::sqrt(6. / ((4 + 60) * 2))).epsilon(0.02));
  CHECK(most("q_b.weight") == Approx(std::sqrt(6. / ((6 + 60) * 6))).epsilon(0.02));
  CHECK(most("v_b.weight") == Approx(std::sqrt(6. / ((2 + 60) * 6))).epsilon(0.02));
  CHECK(most("o.weight") == 0);
  const auto plain = fresh("tpa", shape, ", q_rank: 0");
  CHECK(parameter(plain, "q.weight").abs().max().item<double>() ==
        Approx(std::sqrt(6. / (60 + 24))).epsilon(0.02));
}

TEST_CASE("by `host` joined keys vary as those of plain heads", "[tpa]") {
  torch::manual_seed(4);
  HeadShape shape;
  shape.d_model = 256, shape.heads = shape.kv_heads = 8, shape.head_dim = 32, shape.layers = 2;
  const auto layer = fresh("tpa", shape, ", init_weights: host");
  const auto x = at::randn({1, 200, 256});
  for (const std::string name : {"q", "k", "v"}) {
    const int64_t rank = name == "q" ? 6 : 2;
    const auto a = split_heads(at::linear(x, parameter(layer, name + "_a.weight")), 8),
               b = split_heads(at::linear(x, parameter(layer, name + "_b.weight")), rank);
    const auto joined = at::einsum("bhtr,brtd->bhtd", {a, b}) / rank;
    CHECK(joined.std().item<double>() == Approx(0.02 * 16).epsilon(0.1));
  }
}

TEST_CASE("tensor product heads have no matrices of two tokens, and cost their factors", "[tpa]") {
  const double H = 4, T = 7, pairs = 28;
  REQUIRE_FALSE(make_layer("tpa", small_shape())->matrices());
  const auto flops = [](const std::string& options) {
    return make_layer("tpa", small_shape(), options)->flops(7, 7, 28);
  };
  CHECK(flops("") ==
        2 * T * (D * 10. * (H + d) + D * H * d) + 2 * T * H * d * 10 + 4 * H * pairs * d);
  CHECK(flops(", q_rank: 0, norm: true") ==
        2 * T * (D * 4. * (H + d) + 2 * D * H * d) + 2 * T * H * d * 4 + 4 * H * pairs * d);
}

TEST_CASE("tensor product heads refuse what they have not, by name", "[tpa]") {
  const auto refused = [](const std::string& options, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_WITH(make_layer("tpa", small_shape(), options), Catch::Contains(message));
  };
  refused(", k_rank: 0", "attention.k_rank");
  refused(", v_rank: 0", "attention.v_rank");
  refused(", bias: true", "attention.bias: unknown key");
  REQUIRE_THROWS_WITH(make_layer("tpa", small_shape(4, 2)),
                      Catch::Contains("kv_heads must be heads, 4"));
}

}  // namespace headlab::test_tpa
