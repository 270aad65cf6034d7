// Grouped-tied heads: the formula written out, what the cache holds, reductions to multi-head
// attention, slices, matrices, options.
#include "tests/layers_testing.h"

namespace headlab::test_gta {
using namespace testing;

namespace {

constexpr int64_t D = 20, d = 6;

Tensor turned(const Rotary& rotary, const Tensor& t) {
  return rotary.rotate(t, at::arange(t.size(2), at::kLong));
}

// Rows of each head [heads*d,D] with those first that turn: the last r.
Tensor rope_first(const Tensor& weight, int64_t heads, int64_t r) {
  const auto w = weight.detach().view({heads, d, D});
  return at::cat({w.narrow(1, d - r, r), w.narrow(1, 0, d - r)}, 1).view({heads * d, D});
}

// mha with the keys and values that a grouped-tied layer has.
Layer equal_mha(const Layer& layer, int64_t kv_heads, int64_t r) {
  const auto mha = make_layer("mha", small_shape(kHeads, kv_heads));
  const auto kv = parameter(layer, "kv.weight").detach();
  set(mha, "q.weight", rope_first(parameter(layer, "q.weight"), kHeads, r));
  set(mha, "v.weight", kv);
  set(mha, "o.weight", parameter(layer, "o.weight"));
  auto keys = kv.view({kv_heads, d, D}).narrow(1, 0, d - r);
  if (r > 0) {
    const auto shared = parameter(layer, "k_rope.weight").detach().expand({kv_heads, r, D});
    keys = at::cat({shared, keys}, 1);
  }
  set(mha, "k.weight", keys.reshape({kv_heads * d, D}));
  return mha;
}

}  // namespace

TEST_CASE("a key is the first features of its value and a part that all heads share", "[gta]") {
  constexpr int64_t r = 2;
  const auto layer = make_layer("gta", small_shape(4, 2), ", rope_dim: 2, bias: true");
  const auto x = random({kBatch, kTokens, D});
  const Rotary rotary;
  const auto of = [&](const std::string& name) {
    return at::linear(x, parameter(layer, name + ".weight"), parameter(layer, name + ".bias"));
  };
  const auto kv = split_heads(of("kv"), 2).repeat_interleave(2, 1);  // [B,H,T,d]
  const auto shared = turned(rotary, of("k_rope").unsqueeze(1)).expand({-1, kHeads, -1, -1});
  const auto q = split_heads(of("q"), kHeads);
  const auto z = at::matmul(q.narrow(3, 0, d - r), kv.narrow(3, 0, d - r).transpose(2, 3)) +
                 at::matmul(turned(rotary, q.narrow(3, d - r, r)), shared.transpose(2, 3));
  auto ctx = masked_context();
  ctx.rotary = &rotary;
  const auto a = masked_softmax(z / std::sqrt(6.) + ctx.bias,
                                allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU));
  const auto y = at::linear(at::matmul(a, kv).transpose(1, 2).flatten(2),
                            parameter(layer, "o.weight"), parameter(layer, "o.bias"));
  REQUIRE(difference(map_of(*layer, x, ctx), a) < 1e-13);
  REQUIRE(difference(layer->forward(x, ctx).y, y) < 1e-12);
}

TEST_CASE("grouped-tied heads are grouped-query heads whose rows are tied", "[gta]") {
  const auto x = random({kBatch, kTokens, D});
  for (const int64_t kv_heads : {4, 2, 1})
    for (const int64_t r : {0, 2, 4, 6}) {
      INFO(kv_heads << " key/value heads, " << r << " features turn");
      const auto layer =
          make_layer("gta", small_shape(kHeads, kv_heads), ", rope_dim: " + std::to_string(r));
      const auto mha = equal_mha(layer, kv_heads, r);
      const Rotary all, some(10000, RopeLayout::kHalf, static_cast<double>(r) / d);
      auto tied = causal(), plain = causal();
      tied.rotary = &all;
      if (r > 0) plain.rotary = &some;
      REQUIRE(difference(layer->forward(x, tied).y, mha->forward(x, plain).y) < 1e-13);
    }
}

TEST_CASE("the cache of grouped-tied heads holds a tied state a group and one shared part",
          "[gta]") {
  at::NoGradGuard no_grad;
  for (const int64_t kv_heads : {1, 2, 4}) {
    const auto layer = make_layer("gta", small_shape(kHeads, kv_heads), ", rope_dim: 4");
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    layer->forward(random({1, 9, D}), ctx);
    layer->forward(random({1, 1, D}), ctx);
    REQUIRE(cache.bytes() == 10 * (kv_heads * d + 4) * static_cast<int64_t>(sizeof(double)));
  }
}

TEST_CASE("a tied state goes with the last head of its group, what all share stays", "[gta]") {
  const auto layer = make_layer("gta", small_shape(4, 2));
  const auto x = random({kBatch, kTokens, D});
  layer->mask_heads({0});
  REQUIRE(parameter(layer->slice(), "kv.weight").size(0) == 2 * d);
  layer->mask_heads({0, 1});
  const auto sliced = layer->slice();
  REQUIRE(parameter(sliced, "kv.weight").equal(parameter(layer, "kv.weight").narrow(0, d, d)));
  REQUIRE(parameter(sliced, "k_rope.weight").equal(parameter(layer, "k_rope.weight")));
  REQUIRE(difference(sliced->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-13);
}

TEST_CASE("matrices of grouped-tied heads are of the content that has no position", "[gta]") {
  const auto layer = make_layer("gta", small_shape(4, 2), ", rope_dim: 2");
  const auto of = *layer->matrices();
  const auto x = random({kBatch, kTokens, D});
  REQUIRE(of.k.sizes() == at::IntArrayRef({4, 4, D}));
  REQUIRE(of.v.sizes() == at::IntArrayRef({4, 6, D}));
  set(layer, "k_rope.weight", at::zeros({2, D}, at::kDouble));
  const auto q = at::einsum("hrd,btd->bhtr", {of.q, x}), k = at::einsum("hrd,btd->bhtr", {of.k, x});
  const auto z = at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.);
  const auto allowed = allowed_keys(causal().mask, kTokens, kTokens, at::kCPU);
  REQUIRE(difference(map_of(*layer, x, causal()), masked_softmax(z, allowed)) < 1e-13);
  REQUIRE_FALSE(make_layer("gta", small_shape(), ", rope_dim: 6")->matrices());
}

TEST_CASE("the shared part has a bias where it is asked for, or where q and kv have one", "[gta]") {
  const auto biased = [](const std::string& options) {
    const auto parameters = make_layer("gta", small_shape(), options)->named_parameters();
    return parameters.find("k_rope.bias") != nullptr;
  };
  CHECK_FALSE(biased(""));
  CHECK_FALSE(biased(", o_bias: true"));
  CHECK(biased(", bias: true"));
  CHECK(biased(", qkv_bias: true"));
  CHECK(biased(", k_rope_bias: true"));
  CHECK_FALSE(biased(", bias: true, k_rope_bias: false"));
}

TEST_CASE("operations of grouped-tied heads are those of their projections and of the map",
          "[gta]") {
  const double H = 4, Hkv = 2, r = 2, T = 7, S = 7, pairs = 28;
  CHECK(make_layer("gta", small_shape(4, 2), ", rope_dim: 2")->flops(7, 7, pairs) ==
        4 * T * D * H * d + 2 * S * D * (Hkv * d + r) + 4 * H * pairs * d);
}

TEST_CASE("grouped-tied heads refuse what they have not, by name", "[gta]") {
  REQUIRE_THROWS_WITH(make_layer("gta", small_shape(), ", rope_dim: 7"),
                      Catch::Contains("attention.rope_dim: is 7, and head_dim is 6"));
  REQUIRE_THROWS_WITH(make_layer("gta", small_shape(), ", rope_dim: -1"),
                      Catch::Contains("attention.rope_dim"));
  REQUIRE_THROWS_WITH(make_layer("gta", small_shape(), ", qk_norm: true"),
                      Catch::Contains("attention.qk_norm: unknown key"));
}

}  // namespace headlab::test_gta
