// A reader of the link between layers (tests/first_values_head.cpp) by itself.
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_example_link {
using namespace testing;

namespace {

Tensor parameter(const torch::nn::Module& layer, const std::string& name) {
  return layer.named_parameters()[name];
}

// What the layer says where its heads attend to `mixed` [B,T,Hkv,e], the only values there are.
Tensor plain(const AttentionHeads& layer, const Tensor& x, const Tensor& mixed) {
  const int64_t T = x.size(1);
  const auto heads = [&](const char* name) {
    return at::linear(x, parameter(layer, name)).view({2, T, -1, 6}).transpose(1, 2);
  };
  const auto repeated = [](const Tensor& kv) { return kv.repeat_interleave(2, 1); };
  const auto o =
      at::scaled_dot_product_attention(heads("q.weight"), repeated(heads("k.weight")),
                                       repeated(mixed.transpose(1, 2)), {}, 0, /*causal=*/true);
  return at::linear(o.transpose(1, 2).reshape({2, T, 24}), parameter(layer, "o.weight"));
}

}  // namespace

TEST_CASE("a reader of the link mixes what was offered, sliced as it is", "[example]") {
  const auto layer = make_layer("first_values", small_shape(4, 2));
  at::NoGradGuard no_grad;
  const auto x = random({2, 7, 20}), first = random({2, 2, 7, 6});
  LayerLink link{.first_values = first};
  auto ctx = causal();
  ctx.link = &link;
  const auto own = at::linear(x, parameter(*layer, "v.weight")).view({2, 7, 2, 6});
  const auto lambda = parameter(*layer, "lambda");
  const auto mixed = lambda[0] * first.transpose(1, 2) + lambda[1] * own;
  REQUIRE(difference(layer->forward(x, ctx).y, plain(*layer, x, mixed)) < 1e-12);
  for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {2, 3}, {0, 1, 2, 3}}) {
    layer->mask_heads(gone);
    REQUIRE(difference(layer->slice()->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
  }
}

TEST_CASE("what nobody offered is an error that names the layer", "[example]") {
  const auto layer = make_layer("first_values", small_shape());
  LayerLink link;
  auto ctx = causal();
  ctx.link = &link;
  REQUIRE_THROWS_WITH(layer->forward(random({2, 7, 20}), ctx),
                      Catch::Contains("layer 1 of 'self' reads of the link"));
}

}  // namespace headlab::test_example_link
