// Weights with the signs of their scores: the formula, reductions, paths, statistics.
#include "core/errors.h"
#include "tests/isa_testing.h"
#include "tests/layers_testing.h"

namespace headlab::test_cog {
using namespace testing;

namespace {

Tensor scaled_scores(const Layer& layer, const Tensor& x) {
  const auto q = split_heads(at::linear(x, parameter(layer, "q.weight")), kHeads),
             k = split_heads(at::linear(x, parameter(layer, "k.weight")), 2)
                     .repeat_interleave(2, /*dim=*/1);
  return at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.);
}

}  // namespace

TEST_CASE("sizes of scores are weighed by a softmax behind bias and mask, then signed", "[cog]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto layer = make_layer("cog", small_shape(4, 2));
  const auto x = random({kBatch, kTokens, 20});
  const auto z = scaled_scores(layer, x);
  auto ctx = masked_context();
  const auto allowed = allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU);
  for (const bool biased : {true, false}) {
    if (!biased) ctx.bias = Tensor();
    const auto sizes = biased ? z.abs() + ctx.bias : z.abs();
    const auto a = z.sign() * masked_softmax(sizes, allowed);
    REQUIRE(difference(map_of(*layer, x, ctx), a) < 1e-12);
    const auto v =
        split_heads(at::linear(x, parameter(layer, "v.weight")), 2).repeat_interleave(2, /*dim=*/1);
    const auto o = at::matmul(a, v).transpose(1, 2).flatten(2);
    REQUIRE(difference(layer->forward(x, ctx).y, at::linear(o, parameter(layer, "o.weight"))) <
            1e-12);
  }
}

TEST_CASE("blocks of rows give signed weights and their gradients", "[cog]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto layer = make_layer("cog", small_shape(4, 2));
  const auto x = random({kBatch, 33, 20});
  auto by_map = causal(), by_rows = causal();
  by_map.backend = Backend::kEager, by_rows.backend = Backend::kRows;
  const auto want = gradients(*layer, x, by_map), got = gradients(*layer, x, by_rows);
  REQUIRE(difference(got.y, want.y) < 1e-12);
  for (const auto& [name, gradient] : want.of) {
    INFO(name);
    REQUIRE(relative_difference(got.of.at(name), gradient) < 1e-11);
  }
}

TEST_CASE("scores above 0 are a softmax, and turned queries turn the output", "[cog]") {
  const auto layer = make_layer("cog", small_shape(4, 2), ", o_bias: true");
  const auto plain = make_layer("mha", small_shape(4, 2), ", o_bias: true");
  copy_weights(plain, layer);
  const auto x = random({kBatch, kTokens, 20});
  const auto bias = parameter(layer, "o.bias");
  const auto y = layer->forward(x, causal()).y;
  at::NoGradGuard no_grad;
  parameter(layer, "q.weight").neg_();
  REQUIRE(difference(layer->forward(x, causal()).y - bias, bias - y) < 1e-12);
  const auto positive = x.abs();
  for (const auto& heads : {layer, plain})
    for (const char* name : {"q.weight", "k.weight"}) parameter(heads, name).abs_();
  REQUIRE(difference(layer->forward(positive, causal()).y, plain->forward(positive, causal()).y) <
          1e-12);
}

TEST_CASE("signs are counted, patterns are of the sizes", "[cog]") {
  const auto layer = make_layer("cog", small_shape(4, 2));
  const auto x = random({kBatch, kTokens, 20});
  const auto seen = run(layer, x, causal());
  const auto row_sum = seen.map.sum(-1).mean(at::IntArrayRef({0, 2}));
  const auto entropy = -(seen.map.abs() * seen.map.abs().clamp_min(1e-300).log())
                            .sum(-1)
                            .mean(at::IntArrayRef({0, 2}));
  for (int64_t h = 0; h < kHeads; ++h) {
    REQUIRE(seen.statistics.at("composed_row_sum")[h] == Approx(row_sum[h].item<double>()));
    REQUIRE(seen.statistics.at("entropy")[h] == Approx(entropy[h].item<double>()));
    REQUIRE(seen.statistics.at("composed_negative_mass")[h] > 0);
  }
}

}  // namespace headlab::test_cog
