// Collaborative heads: the identities of their spec, their reductions to multi-head attention,
// sizes, costs, decoding and slicing with every option.
#include "tests/catch.h"
#include "tests/layers_testing.h"

namespace headlab::test_collaborative {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7;

Layer collaborative(const std::string& options = "", int64_t heads = 4) {
  return make_layer("collaborative", small_shape(heads, heads), options);
}

Tensor blocks(int64_t H, int64_t width) {
  return at::kron(at::eye(H, at::kDouble), at::ones({1, width}, at::kDouble));  // [H, H*width]
}

// The copy of multi-head attention with biases: k.bias is dropped, q.bias becomes a content bias.
Layer copy_of(const Layer& mha) {
  const int64_t H = mha->shape().heads, d = mha->shape().head_dim;
  auto copy = collaborative("", H);
  copy_weights(copy, mha);
  set(copy, "mixing", blocks(H, d));
  const auto bias = parameter(mha, "q.bias").view({H, 1, d});
  set(copy, "content_bias.weight",
      at::matmul(bias, parameter(mha, "k.weight").view({H, d, -1})).squeeze(1));
  return copy;
}

const std::vector<std::string> kOptions{
    "",
    ", content_bias: false, v_bias: false, o_bias: false",
    ", shared_dim: 10, scale: shared, v_bias: false",
    ", shared_dim: 30, scale: 0.3, o_bias: false",
};

}  // namespace

TEST_CASE("collaborative: a copy of multi-head attention is multi-head attention",
          "[collaborative]") {
  const auto mha = make_layer("mha", small_shape(), ", bias: true");
  const auto copy = copy_of(mha);
  const auto x = random({B, T, 20}), cotangent = random({B, T, 20});
  auto ctx = causal();
  ctx.bias = random({1, 4, T, T});
  for (auto backend : {Backend::kAuto, Backend::kEager}) {
    ctx.backend = backend;
    const auto old_x = x.clone().requires_grad_(), new_x = x.clone().requires_grad_();
    mha->zero_grad(), copy->zero_grad();
    const auto old = run(mha, old_x, ctx), fresh = run(copy, new_x, ctx);
    REQUIRE(difference(old.y, fresh.y) < 1e-12);
    REQUIRE(difference(old.map, fresh.map) < 1e-13);
    (old.y * cotangent).sum().backward();
    (fresh.y * cotangent).sum().backward();
    REQUIRE(difference(old_x.grad(), new_x.grad()) < 1e-11);
    for (const char* name : {"v.weight", "v.bias", "o.weight", "o.bias"}) {
      INFO(name);
      REQUIRE(difference(parameter(mha, name).grad(), parameter(copy, name).grad()) < 1e-11);
    }
  }
}

TEST_CASE("collaborative: features that no query and no key has change nothing",
          "[collaborative]") {
  const auto x = random({B, T, 20});
  for (const std::string scale : {"head", "shared"}) {
    const auto small = collaborative(", shared_dim: 9, scale: " + scale);
    const auto large = collaborative(", shared_dim: 14, scale: " + scale);
    copy_weights(large, small);
    const auto none = at::zeros({5, 20}, at::kDouble);
    for (const char* name : {"q.weight", "k.weight"})
      set(large, name, at::cat({parameter(small, name), none}));
    set(large, "mixing", at::cat({parameter(small, "mixing"), random({4, 5})}, 1));
    const auto before = small->forward(x).y, after = large->forward(x).y;
    if (scale == "head")
      REQUIRE(difference(before, after) < 1e-12);
    else
      REQUIRE(difference(before, after) > 1e-3);
  }
}

TEST_CASE("collaborative: features may be rescaled and reordered", "[collaborative]") {
  const auto layer = collaborative(", shared_dim: 9"), other = collaborative(", shared_dim: 9");
  const auto x = random({B, T, 20});
  const auto a = at::rand({9}, at::kDouble) + 0.5, b = -at::rand({9}, at::kDouble) - 0.5;
  const auto order = at::tensor({3, 1, 8, 0, 2, 7, 6, 5, 4}, at::kLong);
  auto moved = [&](const char* name, const Tensor& factor, int64_t dim) {
    set(other, name, (parameter(layer, name) * factor).index_select(dim, order));
  };
  moved("q.weight", a.unsqueeze(1), 0);
  moved("k.weight", b.unsqueeze(1), 0);
  moved("mixing", 1 / (a * b), 1);
  REQUIRE(difference(layer->forward(x, causal()).y, other->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("collaborative: heads that mix alike attend alike", "[collaborative]") {
  const auto layer = collaborative(", shared_dim: 10, content_bias: false");
  set(layer, "mixing", at::ones({4, 10}));
  const auto map = run(layer, random({B, T, 20}), causal()).map;
  for (int64_t h = 1; h < 4; ++h) REQUIRE(difference(map.select(1, h), map.select(1, 0)) < 1e-14);
}

TEST_CASE("collaborative: a single key leaves nothing to choose", "[collaborative]") {
  const auto layer = collaborative();
  (layer->forward(random({B, 1, 20})).y * random({B, 1, 20})).sum().backward();
  for (const char* name : {"q.weight", "k.weight", "mixing", "content_bias.weight"}) {
    INFO(name);
    REQUIRE(parameter(layer, name).grad().abs().max().item<double>() < 1e-12);
  }
  REQUIRE(parameter(layer, "v.weight").grad().abs().max().item<double>() > 1e-3);
}

TEST_CASE("collaborative: block mixing is concatenated heads of key width R/H", "[collaborative]") {
  const int64_t width = 3;  // values keep head_dim 6
  const auto x = random({B, T, 20});
  for (const auto& [scale, factor] :
       {std::pair{"head", 1 / std::sqrt(6.)}, {"shared", 1 / std::sqrt(3.)}}) {
    const auto layer =
        collaborative(std::string(", shared_dim: 12, content_bias: false, scale: ") + scale);
    set(layer, "mixing", blocks(4, width));
    auto heads = [&](const char* name) {
      return split_heads(at::linear(x, parameter(layer, name)), 4);
    };
    const auto z = at::matmul(heads("q.weight"), heads("k.weight").transpose(2, 3)) * factor;
    const auto v = heads("v.weight") + parameter(layer, "v.bias").view({4, 1, 6});
    const auto joined = at::matmul(at::softmax(z, -1), v).transpose(1, 2).flatten(2);
    const auto expected =
        at::linear(joined, parameter(layer, "o.weight"), parameter(layer, "o.bias"));
    REQUIRE(difference(layer->forward(x).y, expected) < 1e-12);
  }
}

TEST_CASE("collaborative: the scale is of the head, of the shared space, or a number",
          "[collaborative]") {
  const auto x = random({B, T, 20});
  auto y = [&](const std::string& scale) {
    return collaborative(", shared_dim: 10, scale: " + scale)->forward(x).y;
  };
  REQUIRE(difference(y("head"), y(shortest(1 / std::sqrt(6.)))) == 0);
  REQUIRE(difference(y("shared"), y(shortest(std::sqrt(4. / 10)))) == 0);
  REQUIRE(difference(y("head"), y("shared")) > 1e-3);
  REQUIRE(difference(collaborative(", scale: head")->forward(x).y,
                     collaborative(", scale: shared")->forward(x).y) < 1e-12);  // R = H*d
}

TEST_CASE("collaborative: logits depend on the distance between rotated tokens alone",
          "[collaborative]") {
  const Rotary rotary(100);
  const auto x = random({B, T, 20});
  auto at_place = [&](const Layer& layer, int64_t first) {
    auto ctx = causal();
    ctx.rotary = &rotary;
    ctx.positions = at::arange(first, first + T);
    return layer->forward(x, ctx).y;
  };
  for (const char* options : {", shared_dim: 10", ", content_bias: false"}) {
    const auto layer = collaborative(options);
    REQUIRE(difference(at_place(layer, 0), at_place(layer, 50)) < 1e-11);
    REQUIRE(difference(at_place(layer, 0), layer->forward(x, causal()).y) > 1e-3);
  }
}

TEST_CASE("collaborative: the cache holds R + H + H*d numbers a token", "[collaborative]") {
  const auto layer = collaborative(", shared_dim: 10");
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  at::NoGradGuard no_grad;
  layer->forward(random({B, T, 20}), ctx);
  // Nothing that is added: what is kept of the T tokens.
  REQUIRE(cache.append("k", at::zeros({B, 1, 0, 14}, at::kDouble)).sizes() ==
          at::IntArrayRef({B, 1, T, 14}));
  REQUIRE(cache.append("v", at::zeros({B, 4, 0, 6}, at::kDouble)).sizes() ==
          at::IntArrayRef({B, 4, T, 6}));
}

TEST_CASE("collaborative: slices compute the same with every option, once and again",
          "[collaborative]") {
  const Rotary rotary;
  const auto x = random({B, T, 20});
  for (const auto& options : kOptions) {
    INFO(options);
    const auto layer = collaborative(options);
    auto ctx = causal();
    ctx.rotary = &rotary;
    ctx.bias = random({1, 4, T, T});
    layer->mask_heads({1});
    const auto once = layer->slice();
    REQUIRE(difference(once->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
    once->mask_heads({3});
    layer->mask_heads({1, 3});
    const auto twice = once->slice();
    REQUIRE(difference(twice->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
    ctx.memory = random({B, 5, 20});
    ctx.bias = Tensor();
    ctx.mask.causal = false;
    REQUIRE(difference(twice->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
    // The features stay; the rest goes.
    const auto kept = twice->named_parameters(), all = layer->named_parameters();
    for (const char* name : {"q.weight", "k.weight"}) REQUIRE(at::equal(kept[name], all[name]));
    const auto rows = at::tensor({0, 2}, at::kLong);
    REQUIRE(at::equal(kept["mixing"], all["mixing"].index_select(0, rows)));
    if (const auto* bias = kept.find("content_bias.weight"))
      REQUIRE(at::equal(*bias, all["content_bias.weight"].index_select(0, rows)));
    REQUIRE(kept["v.weight"].sizes() == at::IntArrayRef({12, 20}));
    REQUIRE(kept["o.weight"].sizes() == at::IntArrayRef({20, 12}));
  }
}

TEST_CASE("collaborative: parameters and operations are those of the cost formulas",
          "[collaborative]") {
  auto count = [](const Layer& layer) {
    int64_t n = 0;
    for (const auto& p : layer->parameters()) n += p.numel();
    return n;
  };
  HeadShape bert{.d_model = 768, .heads = 12, .head_dim = 64, .kv_heads = 12};
  auto layer = [&](int64_t R) {
    return fresh("collaborative", bert, ", shared_dim: " + std::to_string(R));
  };
  const auto mha = fresh("mha", bert, ", bias: true");
  // Of BERT-base's 12 layers, as published: 108.3M parameters become 108.5M, 101.4M, 99.0M.
  const std::vector<std::pair<int64_t, double>> published{{768, 108.5}, {384, 101.4}, {256, 99.0}};
  for (const auto& [R, millions] : published) {
    const int64_t saved = 12 * (count(mha) - count(layer(R)));
    REQUIRE(count(layer(R)) == 2 * 768 * R + 12 * R + 12 * 768 + 2 * 768 * 769);
    REQUIRE(108.3 - static_cast<double>(saved) * 1e-6 == Approx(millions).margin(0.1));
  }
  // Where time breaks even with plain attention.
  const std::vector<std::pair<int64_t, int64_t>> even{
      {128, 411}, {512, 203}, {1024, 141}, {2048, 105}};
  for (const auto& [length, R] : even) {
    auto cost = [&, n = length](const Layer& of) {
      return of->flops(n, n, static_cast<double>(n * n));
    };
    REQUIRE(cost(layer(R - 1)) < cost(mha));
    REQUIRE(cost(layer(R + 1)) > cost(mha));
  }
  const auto bare = collaborative(", shared_dim: 10, content_bias: false");
  REQUIRE(bare->flops(7, 5, 35) == 2 * (12 * 20 * 10 + 12 * 20 * 24 + 4 * 7 * 10 + 35 * 4 * 16));
}

TEST_CASE("collaborative: every start of the mixing", "[collaborative]") {
  auto mixing = [](const std::string& how, int64_t R) {
    const auto layer = fresh("collaborative", small_shape(),
                             ", shared_dim: " + std::to_string(R) + ", mixing_init: " + how);
    return parameter(layer, "mixing").detach().to(at::kDouble);
  };
  const auto uneven = mixing("concatenate", 10);  // blocks of 3, the last head has one feature
  REQUIRE(at::equal(uneven, blocks(4, 3).narrow(1, 0, 10)));
  REQUIRE(at::equal(mixing("concatenate", 24), blocks(4, 6)));
  // Blocks of ceil(5/4) = 2: the last head has nothing left.
  REQUIRE(at::equal(mixing("concatenate", 5), blocks(4, 2).narrow(1, 0, 5)));
  REQUIRE(at::equal(mixing("ones", 10), at::ones({4, 10}, at::kDouble)));
  const auto normal = mixing("normal", 4000);
  REQUIRE(normal.std().item<double>() == Approx(0.2).epsilon(0.02));
  REQUIRE(normal.abs().max().item<double>() > 0.5);
  for (const auto& [how, bound] :
       {std::pair{"linear", std::sqrt(1 / 4000.)}, {"xavier", std::sqrt(6 / 4004.)}}) {
    const auto uniform = mixing(how, 4000);
    REQUIRE(uniform.abs().max().item<double>() == Approx(bound).epsilon(0.01));
    REQUIRE(uniform.abs().max().item<double>() <= bound * (1 + 1e-6));
    REQUIRE(uniform.std().item<double>() == Approx(bound / std::sqrt(3.)).epsilon(0.02));
  }
}

TEST_CASE("collaborative: projections start as torch's Linear", "[collaborative]") {
  const HeadShape shape{.d_model = 100, .heads = 4, .head_dim = 16, .kv_heads = 4};
  const auto layer = fresh("collaborative", shape, "");
  for (const auto& p : layer->named_parameters()) {
    if (p.key() == "mixing") continue;
    INFO(p.key());
    const double bound = p.key().starts_with("o.") ? 1 / 8. : 1 / 10.;
    REQUIRE(p.value().abs().max().item<double>() <= bound * (1 + 1e-6));
    REQUIRE(p.value().abs().max().item<double>() > 0.8 * bound);
  }
}

TEST_CASE("collaborative: streamed statistics are those of the map", "[collaborative]") {
  const auto layer = collaborative(", shared_dim: 10");
  const auto x = random({B, T, 20});
  const auto ctx = causal();
  const auto seen = run(layer, x, ctx);
  const auto v =
      split_heads(at::linear(x, parameter(layer, "v.weight"), parameter(layer, "v.bias")), 4);
  require_statistics_of_map(layer, seen, v);
}

TEST_CASE("collaborative: wrong options say what they should be", "[collaborative]") {
  auto refusal = [](const std::string& options, const std::string& what) {
    REQUIRE_THROWS_WITH(collaborative(options), Catch::Contains(what));
  };
  refusal(", scale: haed",
          "attention.scale: must be head, shared or a number; did you mean 'head'");
  refusal(", scale: {}", "attention.scale: must be head, shared or a number");
  refusal(", shared_dim: 0", "attention.shared_dim: must be at least 1");
  refusal(", mixing_init: uniform", "attention.mixing_init: must be");
  REQUIRE_THROWS_WITH(make_layer("collaborative", small_shape(4, 2)),
                      Catch::Contains("are not grouped: kv_heads must be heads, 4"));
}

TEST_CASE("collaborative: the scale is written as it was read", "[collaborative]") {
  REQUIRE(to_flow(read_kind("collaborative", ", scale: head").write_minimal()) ==
          "{kind: collaborative}");
  REQUIRE(to_flow(read_kind("collaborative", ", scale: shared").write_minimal()) ==
          "{kind: collaborative, scale: shared}");
  REQUIRE(to_flow(read_kind("collaborative", ", scale: 0.25").write_minimal()) ==
          "{kind: collaborative, scale: 0.25}");
}

TEST_CASE("collaborative: rotary positions refuse an odd number of features", "[collaborative]") {
  const auto odd = read_kind("collaborative", ", shared_dim: 7");
  REQUIRE_NOTHROW(make_heads(odd, small_shape()));
  REQUIRE_THROWS_WITH(make_heads(odd, small_shape(), {.rotary = true}),
                      Catch::Contains("attention.shared_dim: rotary positions turn pairs of "
                                      "features, here are 7; choose 6 or 8"));
  REQUIRE_NOTHROW(
      make_heads(read_kind("collaborative", ", shared_dim: 8"), small_shape(), {.rotary = true}));
}

}  // namespace headlab::test_collaborative
