// Stick-breaking heads: the product written out, where the rest of a stick goes, what hidden keys
// do, paths with and without the map.
#include "tests/isa_testing.h"
#include "tests/stickbreaking_testing.h"

namespace headlab::test_stickbreaking {
using namespace testing;

namespace {

// What a layer shall give, by the formula.
Tensor expected(const Layer& layer, const Tensor& x, const HeadContext& ctx,
                const std::string& remainder, bool attend_current) {
  const int64_t T = x.size(1);
  auto z = scores_of(layer, x);
  if (ctx.bias.defined()) z = z + ctx.bias;
  const auto allowed = allowed_keys(ctx.mask, T, T, at::kCPU).expand_as(z);
  auto [a, rest] = broken(z, allowed, attend_current);
  if (remainder == "value")
    a.diagonal(0, 2, 3).add_(rest * allowed.diagonal(0, 2, 3).to(at::kDouble));
  auto heads = at::matmul(a, heads_of(layer, x, "v.weight"));
  if (remainder == "bias")
    heads =
        heads + (rest * allowed.any(-1)).unsqueeze(3) * parameter(layer, "remainder").unsqueeze(1);
  return output_of(layer, heads);
}

void zero_scores(const Layer& layer) { set(layer, "q.weight", at::zeros({24, 20}, at::kDouble)); }

}  // namespace

TEST_CASE("keys break their shares off one after the other, and the rest goes where it shall",
          "[stickbreaking]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const auto& remainder : kRemainders)
    for (const bool current : {false, true}) {
      INFO(remainder << (current ? ", attend_current" : ""));
      const auto layer = make_layer("stickbreaking", small_shape(), with(remainder, current));
      const auto x = random({kBatch, kTokens, 20});
      for (const auto& ctx : {causal(), causal(3), masked_context()})
        for (const auto backend : {Backend::kAuto, Backend::kRows, Backend::kEager}) {
          auto own = ctx;
          own.backend = backend;
          const auto want = expected(layer, x, ctx, remainder, current);
          REQUIRE(difference(layer->forward(x, own).y, want) < 1e-12);
        }
    }
}

TEST_CASE("rows of blocks and the map that is held have the same gradients", "[stickbreaking]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto x = random({kBatch, 70, 20});
  for (const auto& remainder : kRemainders)
    for (const double dropout : {0.0, 0.3}) {
      INFO(remainder << ", dropout " << dropout);
      auto shape = small_shape(4, 2);
      shape.dropout = dropout;
      const auto layer =
          make_layer("stickbreaking", shape, with(remainder, true) + ", norm: true, bias: true");
      layer->train();
      for (const int64_t window : {0, 9}) {
        auto ctx = causal(window);
        ctx.rng = {.seed = 3, .step = 1};
        ctx.mask.key_length = at::tensor({int64_t{70}, int64_t{51}});
        ctx.backend = Backend::kEager;
        const auto want = gradients(*layer, x, ctx);
        ctx.backend = Backend::kRows;
        const auto got = gradients(*layer, x, ctx);
        REQUIRE(relative_difference(got.y, want.y) < 1e-11);
        for (const auto& [name, gradient] : want.of) {
          INFO(name);
          REQUIRE(relative_difference(got.of.at(name), gradient) < 1e-9);
        }
      }
    }
}

TEST_CASE("equal scores of 0 halve the stick at every key", "[stickbreaking]") {
  const auto layer = make_layer("stickbreaking", small_shape());
  zero_scores(layer);
  const auto map = map_of(*layer, random({kBatch, kTokens, 20}), causal());
  for (int64_t i = 0; i < kTokens; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      const double want = std::exp2(-static_cast<double>(j < i ? i - j : i));
      REQUIRE(difference(map.select(2, i).select(2, j),
                         at::full({kBatch, kHeads}, want, at::kDouble)) < 1e-15);
    }
}

TEST_CASE("very low scores leave a token its own value, a very high one gives all to that key",
          "[stickbreaking]") {
  const auto layer = make_layer("stickbreaking", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto v = heads_of(layer, x, "v.weight");
  auto ctx = causal();
  for (const double score : {-1e4, 1e4}) {
    ctx.bias = at::full({1, 1, kTokens, kTokens}, score, at::kDouble);
    const auto before = at::cat({v.narrow(2, 0, 1), v.narrow(2, 0, kTokens - 1)}, 2);
    for (const auto backend : {Backend::kRows, Backend::kEager}) {
      ctx.backend = backend;
      REQUIRE(difference(layer->forward(x, ctx).y, output_of(layer, score < 0 ? v : before)) <
              1e-12);
    }
  }
}

TEST_CASE("a rest that is next to nothing is no less exact", "[stickbreaking]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("stickbreaking", small_shape(), ", remainder: bias");
  set(layer, "v.weight", at::zeros({24, 20}, at::kDouble));
  set(layer, "remainder", at::full({kHeads, 6}, 1e100, at::kDouble));
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.bias = at::full({1}, 40., at::kDouble);
  for (const auto backend : {Backend::kRows, Backend::kEager}) {
    ctx.backend = backend;
    const auto z = scores_of(layer, x) + 40;
    const auto behind = (-z).sigmoid().log().masked_fill(
        at::arange(kTokens) >= at::arange(kTokens).unsqueeze(1), 0);
    const auto rest = behind.sum(-1, true).exp() * 1e100;  // [B,H,T,1]
    const auto y = layer->forward(x, ctx).y;
    const auto exact = output_of(layer, rest.expand({-1, -1, -1, 6}));
    REQUIRE(((y - exact).abs() / exact.abs().amax(-1, true)).max().item<double>() < 1e-11);
  }
}

TEST_CASE("many keys that take little lose no digits in float32", "[stickbreaking]") {
  at::NoGradGuard no_grad;
  constexpr int64_t T = 2000;
  const auto exact = make_layer("stickbreaking", small_shape(), ", remainder: none");
  for (auto& p : exact->parameters()) p.copy_(p.to(at::kFloat));
  const auto single = exact->slice();
  single->to(at::kFloat);
  const auto x = random({1, T, 20}).to(at::kFloat);
  auto ctx = causal();
  ctx.bias = at::full({1}, -7., at::kDouble);
  for (const auto backend : {Backend::kRows, Backend::kEager}) {
    ctx.backend = backend;
    const auto want = exact->forward(x.to(at::kDouble), ctx).y;
    REQUIRE(relative_difference(single->forward(x, ctx).y.to(at::kDouble), want) < 3e-5);
  }
}

TEST_CASE("a hidden key breaks nothing, and a token that hides itself loses the rest",
          "[stickbreaking]") {
  const auto layer = make_layer("stickbreaking", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.allowed = (at::arange(kTokens) != 3).view({1, 1, 1, kTokens});
  const auto without = [](const Tensor& t, int64_t dim) {
    return at::cat({t.narrow(dim, 0, 3), t.narrow(dim, 4, kTokens - 4)}, dim);
  };
  const auto map = map_of(*layer, x, ctx);
  REQUIRE(difference(without(without(map, 2), 3), map_of(*layer, without(x, 1), causal())) < 1e-14);
  const auto sums = map.sum(-1).select(2, 3);
  const auto z = scores_of(layer, x).select(2, 3).narrow(2, 0, 3);
  REQUIRE(difference(sums, 1 - (1 - z.sigmoid()).prod(-1)) < 1e-13);
}

TEST_CASE("group norm is of each head, before the gates", "[stickbreaking]") {
  const auto plain = make_layer("stickbreaking", small_shape(), ", remainder: bias");
  const auto layer =
      make_layer("stickbreaking", small_shape(), ", remainder: bias, norm: true, norm_eps: 0.1");
  copy_weights(layer, plain);
  const auto x = random({kBatch, kTokens, 20}), gates = random({kBatch, kHeads, kTokens});
  Tensor said;
  auto ctx = causal();
  ctx.outputs = [&](const Tensor& o) { return said = o; };
  plain->forward(x, ctx);
  const auto mean = said.mean(-1, true), var = said.var(-1, /*unbiased=*/false, true);
  const auto of_head = [&](const char* name) { return parameter(layer, name).view({4, 1, 6}); };
  const auto want =
      (said - mean) / (var + 0.1).sqrt() * of_head("norm.weight") + of_head("norm.bias");
  auto gated = causal();
  gated.gates = gates;
  REQUIRE(difference(layer->forward(x, gated).y, output_of(layer, want * gates.unsqueeze(3))) <
          1e-12);
}

}  // namespace headlab::test_stickbreaking
