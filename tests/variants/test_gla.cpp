// Grouped latent heads: latent heads of each group added, what the cache holds, the latents
// absorbed, slices, options.
#include "tests/layers_testing.h"

namespace headlab::test_gla {
using namespace testing;

namespace {

constexpr int64_t D = 20, n = 5, r = 4, c = 7, e = 3;
const char* const kOdd =
    ", nope_dim: 5, rope_dim: 4, kv_rank: 7, value_dim: 3, q_rank: 9, bias: true";

// mla of `heads` heads that have the parameters of those from `first` on, and latent u of gla.
Layer latent_heads(const Layer& gla, int64_t heads, int64_t first, int64_t u) {
  const auto mla = make_layer("mla", small_shape(heads, heads),
                              ", nope_dim: 5, rope_dim: 4, kv_rank: 7, value_dim: 3, q_rank: 9");
  const auto rows = [&](const char* name, int64_t from, int64_t count) {
    set(mla, name, parameter(gla, name).detach().narrow(0, from, count));
  };
  for (const char* name : {"q_down.weight", "q_norm.weight", "k_rope.weight"})
    set(mla, name, parameter(gla, name).detach());
  rows("q_up.weight", first * (n + r), heads * (n + r));
  rows("kv_down.weight", u * c, c), rows("kv_norm.weight", u * c, c);
  rows("k_up.weight", first * n, heads * n), rows("v_up.weight", first * e, heads * e);
  set(mla, "o.weight", parameter(gla, "o.weight").detach().narrow(1, first * e, heads * e));
  return mla;
}

const char* const kPlain = ", nope_dim: 5, rope_dim: 4, kv_rank: 7, value_dim: 3, q_rank: 9";

}  // namespace

TEST_CASE("groups of latent heads are latent heads whose outputs are added", "[gla]") {
  const auto x = random({kBatch, kTokens, D});
  const Rotary rotary;
  auto ctx = causal();
  ctx.rotary = &rotary;
  for (const int64_t groups : {1, 2, 4}) {
    INFO(groups << " groups");
    const auto layer = make_layer("gla", small_shape(),
                                  kPlain + std::string(", groups: ") + std::to_string(groups));
    const int64_t heads = kHeads / groups;
    auto sum = at::zeros({kBatch, kTokens, D}, at::kDouble);
    for (int64_t u = 0; u < groups; ++u)
      sum = sum + latent_heads(layer, heads, u * heads, u)->forward(x, ctx).y;
    REQUIRE(difference(layer->forward(x, ctx).y, sum) < 1e-12);
  }
}

TEST_CASE("the cache of grouped latent heads holds a latent a group and one key", "[gla]") {
  at::NoGradGuard no_grad;
  for (const int64_t groups : {1, 2, 4}) {
    const auto layer =
        make_layer("gla", small_shape(), kOdd + std::string(", groups: ") + std::to_string(groups));
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    layer->forward(random({1, 9, D}), ctx);
    layer->forward(random({1, 1, D}), ctx);
    REQUIRE(cache.bytes() == 10 * (groups * c + r) * static_cast<int64_t>(sizeof(double)));
  }
}

TEST_CASE("absorbed, grouped latents say what keys and values made of them say, biases too",
          "[gla]") {
  at::NoGradGuard no_grad;
  const auto whole = make_layer("gla", small_shape(), kOdd);
  whole->mask_heads({1});
  const auto uneven = whole->slice();  // one head of the first latent, two of the second
  whole->mask_heads({});
  const auto x = random({kBatch, 40, D});
  for (const auto& layer : {whole, uneven}) {
    const auto [absorbed, expanded] = last_token_both_ways(*layer, x);
    REQUIRE(difference(absorbed, expanded) < 1e-12);
    REQUIRE_FALSE(at::equal(absorbed, expanded));  // by another way
  }
}

TEST_CASE("absorbed latents drop the weights that keys made of them drop", "[gla]") {
  auto shape = small_shape();
  shape.dropout = 0.4;
  const auto layer = make_layer("gla", shape, kOdd);
  layer->train();
  const auto x = random({kBatch, 1, D});
  auto ctx = HeadContext{};
  ctx.memory = random({kBatch, 30, D});
  ctx.rng = {.seed = 2, .step = 1};
  const auto absorbed = gradients(*layer, x, ctx);
  HeadProbe probe;
  ctx.observer = &probe;
  const auto expanded = gradients(*layer, x, ctx);
  REQUIRE(difference(absorbed.y, expanded.y) < 1e-12);
  for (const auto& [name, gradient] : expanded.of) {
    INFO(name);
    REQUIRE(relative_difference(absorbed.of.at(name), gradient) < 1e-10);
  }
}

TEST_CASE("every latent has a norm of its own", "[gla]") {
  const auto layer = make_layer("gla", small_shape(), kPlain + std::string(", groups: 2"));
  const auto x = random({kBatch, kTokens, D});
  const auto y = layer->forward(x, causal()).y;
  const auto scale_rows = [&](int64_t first, double by) {
    at::NoGradGuard no_grad;
    parameter(layer, "kv_down.weight").narrow(0, first, c).mul_(by);
  };
  scale_rows(0, 64);
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-4 * y.abs().max().item<double>());
  scale_rows(0, 1. / 64), scale_rows(3, 64);  // rows of both
  REQUIRE(difference(layer->forward(x, causal()).y, y) > 1e-2 * y.abs().max().item<double>());
}

TEST_CASE("a latent goes with the last of its heads", "[gla]") {
  const auto layer = make_layer("gla", small_shape(), kOdd);
  const auto x = random({kBatch, kTokens, D});
  for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 2}, {0, 1}, {0, 1, 2}}) {
    INFO("removed heads " << at::IntArrayRef(gone));
    layer->mask_heads(gone);
    const auto sliced = layer->slice();
    const bool lost = gone.size() > 1 && gone[1] == 1;  // both heads of the first latent
    REQUIRE(parameter(sliced, "kv_down.weight").size(0) == (lost ? c : 2 * c));
    REQUIRE(parameter(sliced, "kv_norm.weight").size(0) == (lost ? c : 2 * c));
    REQUIRE(difference(sliced->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-12);
  }
}

TEST_CASE("matrices of grouped latent heads are each of the head's own latent", "[gla]") {
  const auto layer = make_layer("gla", small_shape(), kPlain);
  const auto of = *layer->matrices();
  for (int64_t u = 0; u < 2; ++u) {
    const auto part = *latent_heads(layer, 2, 2 * u, u)->matrices();
    REQUIRE(difference(of.q.narrow(0, 2 * u, 2), part.q) < 1e-13);
    REQUIRE(difference(of.k.narrow(0, 2 * u, 2), part.k) < 1e-13);
    REQUIRE(difference(of.v.narrow(0, 2 * u, 2), part.v) < 1e-13);
    REQUIRE(difference(of.o.narrow(0, 2 * u, 2), part.o) < 1e-13);
  }
}

TEST_CASE("biases of grouped latent heads lie where they are asked for", "[gla]") {
  const auto biases = [](const std::string& options) {
    std::set<std::string> names;
    for (const auto& p : make_layer("gla", small_shape(), options)->named_parameters())
      if (p.key().ends_with(".bias")) names.insert(p.key().substr(0, p.key().size() - 5));
    return names;
  };
  using Names = std::set<std::string>;
  CHECK(biases("").empty());
  CHECK(biases(", down_bias: true") == Names{"q_down", "kv_down", "k_rope"});
  CHECK(biases(", down_bias: true, q_rank: 0") == Names{"q", "kv_down", "k_rope"});
  CHECK(biases(", up_bias: true") == Names{"q_up", "k_up", "v_up"});
  CHECK(biases(", bias: true, up_bias: false") == Names{"q_down", "kv_down", "k_rope", "o"});
}

TEST_CASE("operations of grouped latent heads are those of their projections and of the map",
          "[gla]") {
  const double H = 4, T = 7, pairs = 28, q = 9, g = 2;
  const double weights = q * (D + H * (n + r)) + D * (g * c + r) + c * H * (n + e) + D * H * e;
  CHECK(make_layer("gla", small_shape(), kOdd)->flops(7, 7, pairs) ==
        2 * T * weights + 2 * pairs * H * (n + r + e));
}

TEST_CASE("grouped latent heads refuse what they have not, by name", "[gla]") {
  REQUIRE_THROWS_WITH(make_layer("gla", small_shape(), ", groups: 3"),
                      Catch::Contains("attention.groups: 3 do not divide 4 heads"));
  REQUIRE_THROWS_WITH(make_layer("gla", small_shape(), ", groups: 0"),
                      Catch::Contains("attention.groups"));
  REQUIRE_THROWS_WITH(make_layer("gla", small_shape(4, 2)),
                      Catch::Contains("kv_heads must be heads, 4"));
}

}  // namespace headlab::test_gla
