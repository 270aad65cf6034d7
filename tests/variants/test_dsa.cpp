// The lightning indexer: the choice and the loss written out, reductions, masks, decoding, slices
// and refusals.
#include "core/errors.h"
#include "tests/choice_testing.h"

namespace headlab::test_dsa {
using namespace testing;

namespace {

const std::string kSmall = ", selected: 3, index_heads: 2, index_dim: 5";

// I [B,T,T] by its formula.
Tensor index_scores(const Layer& layer, const Tensor& x, int64_t heads, int64_t width) {
  const auto q = split_heads(at::linear(x, parameter(layer, "index.q.weight")), heads);
  const auto k = at::linear(x, parameter(layer, "index.k.weight")).unsqueeze(1);
  const auto w = at::linear(x, parameter(layer, "index.w.weight"));  // [B,T,HI]
  const auto z = at::relu(at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(width)));
  return (z * w.transpose(1, 2).unsqueeze(3)).sum(1);
}

// The n highest of the candidates, of equal ones the lower: bool [B,T,T].
Tensor best(const Tensor& scores, const Tensor& candidates, int64_t n) {
  const auto z = scores.masked_fill(candidates.logical_not(), kHiddenScore);
  const auto order = std::get<1>(z.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(2, 0, n);
  return at::zeros_like(z, at::kBool).scatter_(2, order, true) & candidates;
}

Tensor lower(int64_t T) { return at::ones({T, T}, at::kBool).tril(); }

}  // namespace

TEST_CASE("dsa is the softmax over the keys that its indexer scores highest", "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(4, 2), kSmall);
  const auto x = random({2, 9, 20});
  const auto chosen = best(index_scores(layer, x, 2, 5), lower(9).expand({2, 9, 9}), 3);
  REQUIRE(at::equal(chosen_by(layer, x, causal(), "keys"), chosen.to(at::kByte)));
  auto masked = causal();
  masked.mask.allowed = chosen.unsqueeze(1);
  const auto mha = make_layer("mha", small_shape(4, 2));
  copy_weights(mha, layer);
  REQUIRE(difference(layer->forward(x, causal()).y, mha->forward(x, masked).y) < 1e-12);
  REQUIRE(difference(map_of(*layer, x, causal()), map_of(*mha, x, masked)) < 1e-12);
}

TEST_CASE("dsa that may see all keys is multi-head attention", "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(4, 2), ", selected: 7, bias: true"),
             mha = make_layer("mha", small_shape(4, 2), ", bias: true");
  copy_weights(mha, layer);
  const auto x = random({kBatch, kTokens, 20});
  const auto ctx = masked_context();
  REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
  REQUIRE(difference(layer->forward(x).y, mha->forward(x).y) < 1e-12);
}

TEST_CASE("masks and windows bound the candidates of dsa, and a bias does not move the choice",
          "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(), kSmall);
  const auto x = random({2, 9, 20});
  const auto scores = index_scores(layer, x, 2, 5);
  auto ctx = causal(4);
  ctx.mask.allowed = at::rand({2, 1, 9, 9}) < 0.6;
  const auto candidates = allowed_keys(ctx.mask, 9, 9, at::kCPU).squeeze(1);
  const auto chosen = chosen_by(layer, x, ctx, "keys");
  REQUIRE(at::equal(chosen, best(scores, candidates, 3).to(at::kByte)));
  ctx.bias = 5 * random({1, 4, 9, 9});
  REQUIRE(at::equal(chosen_by(layer, x, ctx, "keys"), chosen));
  const auto map = map_of(*layer, x, ctx);
  REQUIRE((map * (1 - chosen.unsqueeze(1).to(at::kDouble))).abs().max().item<double>() == 0);
}

TEST_CASE("of equal scores dsa takes the lower keys", "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(), kSmall);
  set(layer, "index.w.weight", at::zeros({2, 20}));
  const auto chosen = chosen_by(layer, random({1, 8, 20}), causal(), "keys")[0];
  REQUIRE(at::equal(chosen, (lower(8) & (at::arange(8) < 3)).to(at::kByte)));
}

TEST_CASE("the loss of dsa is the divergence of the indexer from the mean map, and moves it alone",
          "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(4, 2), kSmall + ", index_loss: 0.7");
  layer->train();
  const auto x = random({2, 9, 20}).requires_grad_();
  const auto out = layer->forward(x, causal());
  REQUIRE(out.aux.size() == 1);
  const auto scores = index_scores(layer, x.detach(), 2, 5);
  const auto chosen = best(scores, lower(9).expand({2, 9, 9}), 3);
  const auto p = map_of(*layer, x.detach(), causal()).mean(1).detach();
  const auto log_q = scores.masked_fill(chosen.logical_not(), kHiddenScore).log_softmax(-1);
  const auto want =
      0.7 * (p * (p.clamp_min(1e-300).log() - log_q.masked_fill(p == 0, 0))).sum(-1).mean();
  REQUIRE(difference(out.aux[0].value, want) < 1e-12);
  out.aux[0].value.backward();
  REQUIRE_FALSE(x.grad().defined());
  for (const auto& parameter : layer->named_parameters()) {
    INFO(parameter.key());
    const auto& gradient = parameter.value().grad();
    const double size = gradient.defined() ? gradient.abs().max().item<double>() : 0;
    REQUIRE((size > 0) == parameter.key().starts_with("index."));
  }
  layer->eval();
  REQUIRE(layer->forward(x, causal()).aux.empty());
}

TEST_CASE("the choice of dsa passes no gradient", "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(), kSmall);
  layer->forward(random({2, 9, 20}), causal()).y.sum().backward();
  for (const char* name : {"index.q.weight", "index.k.weight", "index.w.weight"})
    REQUIRE(parameter(layer, name).grad().abs().max().item<double>() == 0);
}

TEST_CASE("dsa decodes as it reads, and keeps one index key a token", "[dsa]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("dsa", small_shape(4, 2), kSmall + ", qk_norm: true");
  const Rotary rotary;
  const auto x = random({2, 12, 20});
  for (const int64_t window : {0, 5}) {
    auto ctx = causal(window);
    ctx.rotary = &rotary;
    const auto whole = layer->forward(x, ctx).y;
    LayerCache cache;
    ctx.cache = &cache;
    int64_t at = 0;
    for (const int64_t chunk : {4, 1, 1, 5, 1}) {
      const auto y = layer->forward(x.narrow(1, at, chunk), ctx).y;
      REQUIRE(difference(y, whole.narrow(1, at, chunk)) < 1e-12);
      at += chunk;
    }
    if (window == 0) REQUIRE(cache.bytes() == 2 * 12 * (2 * 2 * 6 + 5) * 8);
  }
}

TEST_CASE("a sliced dsa layer keeps its indexer", "[dsa]") {
  const auto layer = make_layer("dsa", small_shape(), ", selected: 3");
  const auto x = random({2, 9, 20});
  layer->mask_heads({0, 3});
  const auto sliced = layer->slice();
  REQUIRE(difference(sliced->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-12);
  REQUIRE(parameter(sliced, "index.w.weight").size(0) == 4);
  REQUIRE(parameter(sliced, "q.weight").size(0) == 12);
  layer->train();
  sliced->train();
  REQUIRE(difference(sliced->forward(x, causal()).aux[0].value,
                     layer->forward(x, causal()).aux[0].value) < 1e-12);
}

TEST_CASE("dsa refuses a memory, and options that choose nothing", "[dsa]") {
  require_refused("dsa", "", {.cross = true}, "'dsa' heads have no cross-attention");
  for (const char* options :
       {", selected: 0", ", index_heads: 0", ", index_dim: 0", ", index_loss: -1"})
    REQUIRE_THROWS_AS(make_layer("dsa", small_shape(), options), ConfigError);
}

}  // namespace headlab::test_dsa
