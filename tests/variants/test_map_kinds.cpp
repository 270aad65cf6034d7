// The kinds that are multi-head attention with another map: sigmoid, softpick, sink, and what they
// say of their rows.
#include "tests/layers_testing.h"

namespace headlab::test_map_kinds {
using namespace testing;

namespace {

const char* const kRich = ", bias: true, scale: 0.3";

// The scores that a layer without biases makes of x.
Tensor scores_of(const Layer& layer, const Tensor& x) {
  const auto split = [&](const char* name) {
    return split_heads(at::linear(x, parameter(layer, name)), kHeads);
  };
  return at::matmul(split("q.weight"), split("k.weight").transpose(2, 3)) / std::sqrt(6.);
}

}  // namespace

TEST_CASE("sigmoid heads: a key's weight is its own affair", "[map_kinds]") {
  const auto layer = make_layer("sigmoid", small_shape(), ", offset: -1.9");
  const auto x = random({kBatch, kTokens, 20});
  const auto map = map_of(*layer, x, causal());
  const auto allowed = allowed_keys(causal().mask, kTokens, kTokens, at::kCPU);
  const auto want = at::sigmoid(scores_of(layer, x) - 1.9) * allowed;
  REQUIRE(difference(map, want) < 1e-12);
  // A key more or less changes no other weight.
  const auto shorter = map_of(*layer, x.narrow(1, 0, 5), causal());
  REQUIRE(difference(shorter, map.narrow(2, 0, 5).narrow(3, 0, 5)) < 1e-12);
}

TEST_CASE("sigmoid heads whose queries are zero weigh every key by 1 / (S + 1)", "[map_kinds]") {
  const auto layer = make_layer("sigmoid", small_shape());
  set(layer, "q.weight", at::zeros({24, 20}));
  const auto map = map_of(*layer, random({kBatch, kTokens, 20}), {});
  REQUIRE(difference(map, at::full_like(map, 1. / (kTokens + 1))) < 1e-12);
}

TEST_CASE("sigmoid heads with an offset by length cannot decode with a cache", "[map_kinds]") {
  const auto layer = make_layer("sigmoid", small_shape());
  REQUIRE_FALSE(layer->traits().decodes);
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  REQUIRE_THROWS_WITH(layer->forward(random({1, 3, 20}), ctx),
                      Catch::Contains("cannot decode with a cache: its offset"));
  REQUIRE(make_layer("sigmoid", small_shape(), ", offset: -4")->traits().decodes);
}

TEST_CASE("the sink of a head takes sigmoid(sink - LSE) of each row, whatever the mask",
          "[map_kinds]") {
  const auto layer = make_layer("sink", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = masked_context();
  const auto z = scores_of(layer, x) + ctx.bias;
  const auto allowed = allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU);
  const auto share = at::sigmoid(log_sum_exp(z, allowed) - parameter(layer, "sink").view({-1, 1}));
  const auto want = masked_softmax(z, allowed) * share.unsqueeze(-1);
  REQUIRE(difference(map_of(*layer, x, ctx), want) < 1e-12);
  // As if there were a key more of that score, whose value is 0.
  set(layer, "sink", at::full({kHeads}, -1e4, at::kDouble));
  const auto mha = make_layer("mha", small_shape());
  copy_weights(mha, layer);
  REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
}

TEST_CASE("a sink equals gates on the heads of multi-head attention", "[map_kinds]") {
  const auto layer = make_layer("sink", small_shape(4, 2), kRich);
  const auto mha = make_layer("mha", small_shape(4, 2), kRich);
  copy_weights(mha, layer);
  const auto x = random({kBatch, kTokens, 20});
  for (int64_t window : {0, 3}) {
    auto ctx = causal(window);
    const Rotary rotary;
    ctx.rotary = &rotary;
    const auto gates = map_of(*layer, x, ctx).sum(-1);  // [B,H,T]
    REQUIRE(gates.max().item<double>() < 1);
    auto gated = ctx;
    gated.gates = gates;
    REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, gated).y) < 1e-12);
  }
}

TEST_CASE("softpick rows sum to at most one, and to one where no score is negative",
          "[map_kinds]") {
  const auto layer = make_layer("softpick", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto sums = map_of(*layer, x, causal()).sum(-1);
  REQUIRE(sums.max().item<double>() <= 1);
  auto ctx = causal();
  ctx.bias = at::full({1, 1, kTokens, kTokens}, 500., at::kDouble);
  const auto raised = map_of(*layer, x, ctx).sum(-1);
  REQUIRE(difference(raised, at::ones_like(raised)) < 1e-7);
  ctx.bias = -ctx.bias;
  REQUIRE(map_of(*layer, x, ctx).abs().max().item<double>() == 0);
}

TEST_CASE("maps whose rows do not sum to one say so, and their patterns are of what they share",
          "[map_kinds]") {
  const auto x = random({kBatch, kTokens, 20});
  for (const std::string kind : {"sigmoid", "softpick", "sink"}) {
    INFO(kind);
    const auto layer = make_layer(kind, small_shape());
    REQUIRE_FALSE(layer->traits().rows_sum_to_one);
    const auto ctx = causal();
    const auto a = map_of(*layer, x, ctx);
    const auto got = statistics_of(*layer, x, ctx);
    const auto sums = a.sum(-1);  // [B,H,T]
    const auto p = a / sums.clamp_min(1e-30).unsqueeze(-1);
    const auto real = sums >= 1e-12;
    const auto heads = at::matmul(a, split_heads(at::linear(x, parameter(layer, "v.weight")), 4));
    const auto o = parameter(layer, "o.weight").view({20, 4, 6}).permute({1, 2, 0});  // [H,e,D]
    const auto v = split_heads(at::linear(x, parameter(layer, "v.weight")), 4);
    const auto norms = at::matmul(v, o).norm(2, -1);  // [B,H,S]
    const auto mean = [&](const Tensor& of_row, const Tensor& rows, int64_t h) {
      return of_row.select(1, h).masked_select(rows.select(1, h)).mean().item<double>();
    };
    const auto all = at::ones_like(real);
    for (int64_t h = 0; h < 4; ++h) {
      INFO("head " << h);
      CHECK(got.at("row_sum")[h] == Approx(mean(sums, all, h)));
      CHECK(got.at("applied_first_token")[h] == Approx(mean(a.select(3, 0), all, h)));
      CHECK(got.at("first_token")[h] == Approx(mean(p.select(3, 0), real, h)));
      CHECK(got.at("entropy")[h] == Approx(mean(-at::xlogy(p, p).sum(-1), real, h)).margin(1e-9));
      CHECK(got.at("value_weighted_norm")[h] ==
            Approx(mean((a * norms.unsqueeze(2)).sum(-1), real, h)));
      CHECK(got.at("output_norm")[h] == Approx(mean(heads.norm(2, -1), real, h)));
      if (kind == "sink") CHECK(got.at("sink_mass")[h] == Approx(mean(1 - sums, all, h)));
      if (kind == "softpick")
        CHECK(got.at("zero_rows")[h] == Approx(mean((sums == 0).to(at::kDouble), all, h)));
    }
  }
}

TEST_CASE("kinds with another map refuse what makes no sense", "[map_kinds]") {
  REQUIRE_THROWS_WITH(make_layer("sigmoid", small_shape(), ", offset: wide"),
                      Catch::Contains("attention.offset"));
  REQUIRE_THROWS_WITH(make_layer("softpick", small_shape(), ", eps: 0"),
                      Catch::Contains("attention.eps"));
  REQUIRE_THROWS_WITH(make_layer("mha", small_shape(), ", map: softmx"),
                      Catch::Contains("did you mean 'softmax'"));
  REQUIRE_THROWS_WITH(make_layer("mha", small_shape(), ", map: {kind: sigmoid, alpha: 2}"),
                      Catch::Contains("attention.map.alpha"));
  REQUIRE_THROWS_WITH(make_layer("bigbird", small_shape(), ", map: sigmoid"),
                      Catch::Contains("attention.map: unknown key"));
}

}  // namespace headlab::test_map_kinds
