// Exclusive self-attention: the formula written out, reductions, slices, statistics, refusals.
#include "core/errors.h"
#include "tests/layers_testing.h"

namespace headlab::test_xsa {
using namespace testing;

namespace {

// Outputs of the heads [B,H,T,6] and their own values, of two kv heads for four.
struct Said {
  Tensor o, v;
};
Said said_by_inner(const Layer& layer, const Tensor& x, const HeadContext& ctx) {
  const auto map = map_of(*layer, x, ctx);
  const auto v = split_heads(at::linear(x, parameter(layer, "inner.v.weight")), 2)
                     .repeat_interleave(2, /*dim=*/1);
  return {at::matmul(map, v), v};
}

Tensor exclusive(const Said& said, const Tensor& share, double eps) {  // share [H]
  const auto square = said.v.square().sum(-1, true).clamp_min(eps);
  const auto along = (said.o * said.v).sum(-1, true) / square;
  return said.o - share.view({1, -1, 1, 1}) * along * said.v;
}

Tensor joined(const Layer& layer, const Tensor& o) {
  return at::linear(o.transpose(1, 2).flatten(2), parameter(layer, "inner.o.weight"));
}

}  // namespace

TEST_CASE("the part along the own value is taken out of outputs", "[xsa]") {
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.allowed = at::rand({kBatch, 1, kTokens, kTokens}) < 0.7;  // own keys may be hidden
  for (const std::string strength : {"fixed", "learned", "0.3"}) {
    INFO(strength);
    const auto layer = make_layer("xsa", small_shape(4, 2), ", eps: 2.5, strength: " + strength);
    const auto share = strength == "learned"
                           ? at::tanh(parameter(layer, "xsa.alpha"))
                           : at::full({4}, strength == "0.3" ? 0.3 : 1.0, at::kDouble);
    const auto want = exclusive(said_by_inner(layer, x, ctx), share, 2.5);
    REQUIRE(difference(layer->forward(x, ctx).y, joined(layer, want)) < 1e-12);
  }
}

TEST_CASE("a learned share begins at the inner heads", "[xsa]") {
  const auto layer = make_layer("xsa", small_shape(4, 2), ", strength: learned");
  const auto inner = make_layer("mha", small_shape(4, 2));
  for (const auto& p : inner->named_parameters())
    set(inner, p.key(), parameter(layer, "inner." + p.key()));
  const auto x = random({kBatch, kTokens, 20});
  set(layer, "xsa.alpha", at::zeros({4}, at::kDouble));
  REQUIRE(difference(layer->forward(x, causal()).y, inner->forward(x, causal()).y) < 1e-12);
  REQUIRE(fresh("xsa", small_shape(), ", strength: learned")
              ->named_parameters()["xsa.alpha"]
              .abs()
              .max()
              .item<double>() == 0);
}

TEST_CASE("what was taken out once is not there a second time", "[xsa]") {
  const auto twice = make_layer("xsa", small_shape(4, 2), ", inner: xsa");
  const auto once = make_layer("xsa", small_shape(4, 2));
  for (const auto& p : once->named_parameters())
    set(once, p.key(), parameter(twice, "inner." + p.key()));
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE(difference(twice->forward(x, causal()).y, once->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("gates come behind it, whichever of the two wraps the other", "[xsa]") {
  const auto gates = ", gate: sigmoid, granularity: element";
  const auto outside = make_layer("gated", small_shape(4, 2), std::string(gates) + ", inner: xsa");
  const auto inside =
      make_layer("xsa", small_shape(4, 2), ", inner: {kind: gated" + std::string(gates) + "}");
  for (const auto& p : outside->named_parameters()) {
    auto name = p.key();  // gate.weight is inner.gate.weight, the rest stays inner.inner
    if (!name.starts_with("inner.")) name.insert(0, "inner.");
    set(inside, name, p.value());
  }
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE(difference(outside->forward(x, causal()).y, inside->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("a first token, which sees itself alone, says nothing", "[xsa]") {
  const auto layer = make_layer("xsa", small_shape(4, 2), ", inner: {kind: mha, bias: true}");
  const auto y = layer->forward(random({kBatch, kTokens, 20}), causal()).y;
  REQUIRE(difference(y.select(1, 0), parameter(layer, "inner.o.bias").expand({kBatch, 20})) <
          1e-12);
}

TEST_CASE("shares stay with their heads where others are cut", "[xsa]") {
  const auto layer = make_layer("xsa", small_shape(4, 2), ", strength: learned");
  const auto x = random({kBatch, kTokens, 20});
  for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {0, 1, 2}}) {
    layer->mask_heads(gone);
    REQUIRE(difference(layer->slice()->forward(x, causal()).y, layer->forward(x, causal()).y) <
            1e-12);
  }
}

TEST_CASE("how far outputs point along their own values is counted before it is taken out",
          "[xsa]") {
  const auto layer = make_layer("xsa", small_shape(4, 2), ", strength: learned");
  const auto x = random({kBatch, kTokens, 20});
  const auto [o, v] = said_by_inner(layer, x, causal());
  const auto seen = statistics_of(*layer, x, causal());
  const auto cosine = at::cosine_similarity(o, v, 3).mean(at::IntArrayRef({0, 2}));
  const auto sum = [](const Tensor& t) { return t.sum(at::IntArrayRef({0, 2})); };
  const auto share = sum((o * v).sum(-1).square() / v.square().sum(-1)) / sum(o.square().sum(-1));
  for (int64_t h = 0; h < 4; ++h) {
    REQUIRE(seen.at("self_cosine")[h] == Approx(cosine[h].item<double>()));
    REQUIRE(seen.at("self_share")[h] == Approx(share[h].item<double>()));
    REQUIRE(seen.at("xsa_alpha")[h] ==
            Approx(std::tanh(parameter(layer, "xsa.alpha")[h].item<double>())));
  }
}

TEST_CASE("exclusive heads want values of each token, and no memory", "[xsa]") {
  REQUIRE_THROWS_WITH(make_layer("xsa", small_shape(), ", inner: linformer"),
                      Catch::Contains("no value of each token"));
  HeadContext ctx;
  ctx.memory = random({kBatch, 5, 20});
  REQUIRE_THROWS(make_layer("xsa", small_shape())->forward(random({kBatch, 3, 20}), ctx));
}

}  // namespace headlab::test_xsa
