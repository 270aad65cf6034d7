// Multi-head latent attention: the formula written out, what its cache holds, the latents absorbed,
// reductions to multi-head attention.
#include "tests/layers_testing.h"

namespace headlab::test_mla {
using namespace testing;

namespace {

constexpr int64_t D = 20, n = 5, r = 4, c = 7;
const char* const kOdd = ", nope_dim: 5, rope_dim: 4, kv_rank: 7, value_dim: 3";

Tensor rms(const Tensor& x, double eps = 1e-6) {
  return x * (x.square().mean(-1, true) + eps).rsqrt();
}

struct Parts {
  Tensor q, k, v;  // [B,H,T,n+r], [B,H,S,n+r], [B,H,S,dv]
};
Parts parts_of(const Layer& layer, const Tensor& x, const Rotary& rotary) {
  const auto of = [&](const char* name, const Tensor& in) {
    return at::linear(in, parameter(layer, name));
  };
  const auto turned = [&](const Tensor& t) {
    return rotary.rotate(t, at::arange(t.size(2), at::kLong));
  };
  const auto q = split_heads(of("q.weight", x), kHeads);
  const auto latents = rms(of("kv_down.weight", x)) * parameter(layer, "kv_norm.weight");
  const auto shared = turned(of("k_rope.weight", x).unsqueeze(1)).expand({-1, kHeads, -1, -1});
  return {at::cat({q.narrow(3, 0, n), turned(q.narrow(3, n, r))}, 3),
          at::cat({split_heads(of("k_up.weight", latents), kHeads), shared}, 3),
          split_heads(of("v_up.weight", latents), kHeads)};
}

}  // namespace

TEST_CASE("keys and values come from one latent, and keys that turn are shared", "[mla]") {
  const auto layer = make_layer("mla", small_shape(), kOdd);
  const auto x = random({kBatch, kTokens, D});
  const Rotary rotary;
  auto ctx = causal();
  ctx.rotary = &rotary;
  const auto [q, k, v] = parts_of(layer, x, rotary);
  const auto z = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(n + r));
  const auto a = masked_softmax(z, allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU));
  REQUIRE(difference(map_of(*layer, x, ctx), a) < 1e-12);
  const auto y =
      at::linear(at::matmul(a, v).transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
  REQUIRE(difference(layer->forward(x, ctx).y, y) < 1e-12);
}

TEST_CASE("the cache of latent heads holds a latent and a key a token, whatever the heads",
          "[mla]") {
  at::NoGradGuard no_grad;
  for (int64_t heads : {2, 4}) {
    const auto layer = make_layer("mla", small_shape(heads, heads), kOdd);
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    layer->forward(random({1, 9, D}), ctx);
    layer->forward(random({1, 1, D}), ctx);
    REQUIRE(cache.bytes() == 10 * (c + r) * static_cast<int64_t>(sizeof(double)));
  }
}

TEST_CASE("absorbed into the queries the latents say what the keys made of them say", "[mla]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("mla", small_shape(), kOdd);
  const auto [absorbed, expanded] = last_token_both_ways(*layer, random({kBatch, 40, D}));
  REQUIRE(difference(absorbed, expanded) < 1e-12);
  REQUIRE_FALSE(at::equal(absorbed, expanded));  // by another way
}

TEST_CASE("latents that are the input make latent heads multi-head attention", "[mla]") {
  const auto mha = make_layer("mha", small_shape());
  const auto layer = make_layer("mla", small_shape(), ", rope_dim: 0, kv_rank: 20");
  for (const char* name : {"q.weight", "o.weight"}) set(layer, name, parameter(mha, name));
  set(layer, "k_up.weight", parameter(mha, "k.weight"));
  set(layer, "v_up.weight", parameter(mha, "v.weight"));
  set(layer, "kv_down.weight", at::eye(D, at::kDouble));
  set(layer, "kv_norm.weight", at::ones({D}, at::kDouble));
  const auto x = rms(random({kBatch, kTokens, D}), 0);
  const auto y = mha->forward(x, causal()).y;
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-5 * y.abs().max().item<double>());
}

TEST_CASE("norms of latents: what they scale may be divided out behind them, and not before",
          "[mla]") {
  const auto layer = make_layer("mla", small_shape(), ", q_rank: 9, rope_dim: 4");
  const auto x = random({kBatch, kTokens, D});
  const auto scaled = [&](const char* name, double by) {
    set(layer, name, parameter(layer, name).detach().clone() * by);
  };
  const auto y = layer->forward(x, causal()).y;
  scaled("q_norm.weight", 8), scaled("q_up.weight", 1. / 8);
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-12);
  scaled("kv_down.weight", 64);
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-4 * y.abs().max().item<double>());
  scaled("kv_norm.weight", 2);
  REQUIRE(difference(layer->forward(x, causal()).y, y) > 1e-2 * y.abs().max().item<double>());
}

TEST_CASE("latent heads refuse key/value heads of their own", "[mla]") {
  REQUIRE_THROWS_WITH(make_layer("mla", small_shape(4, 2)), Catch::Contains("kv_heads"));
  REQUIRE_THROWS_WITH(make_layer("mla", small_shape(), ", kv_rank: 0"),
                      Catch::Contains("attention.kv_rank"));
}

}  // namespace headlab::test_mla
