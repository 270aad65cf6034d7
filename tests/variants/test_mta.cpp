// Multi-token heads: the formula written out, reductions, decoding, slices, statistics, options.
#include "core/errors.h"
#include "tests/layers_testing.h"

namespace headlab::test_mta {
using namespace testing;

namespace {

const char* const kAll =
    ", pre_kernel: [3, 5], post_kernel: [2, 3], pre: true, post: 2, norm: true, gate: head";

int64_t keys_left(const std::string& pad_key, int64_t ck) {
  return pad_key == "both" ? (ck - 1) / 2 : pad_key == "left" ? ck - 1 : 0;
}

// sum_{a,b} w[h,a,b] s[h, i-(cq-1)+a, j-p+b], 0 outside the map.
Tensor convolution_by_loops(const Tensor& map, const Tensor& kernel, int64_t p) {
  const auto out = at::zeros(map.sizes(), at::kDouble);
  const auto s = map.accessor<double, 4>();
  const auto w = kernel.accessor<double, 3>();
  auto o = out.accessor<double, 4>();
  const int64_t cq = kernel.size(1), ck = kernel.size(2), T = map.size(2), S = map.size(3);
  for (int64_t n = 0; n < map.size(0); ++n)
    for (int64_t h = 0; h < map.size(1); ++h)
      for (int64_t i = 0; i < T; ++i)
        for (int64_t j = 0; j < S; ++j)
          for (int64_t a = 0; a < cq; ++a)
            for (int64_t b = 0; b < ck; ++b) {
              const int64_t row = i - (cq - 1) + a, key = j - p + b;
              if (row >= 0 && key >= 0 && key < S) o[n][h][i][j] += w[h][a][b] * s[n][h][row][key];
            }
  return out;
}

struct Maps {
  Tensor z, p, a;  // [B,H,T,S]
};
// Of heads with every part, query heads 2g and 2g+1 on keys g; mixings in pairs.
Maps maps_by_hand(const Layer& layer, const Tensor& x, const Tensor& allowed, const Tensor& bias,
                  const std::string& pad_key) {
  at::NoGradGuard no_grad;
  const auto hidden = allowed.logical_not();
  const auto q = split_heads(at::linear(x, parameter(layer, "q.weight")), 4),
             k = split_heads(at::linear(x, parameter(layer, "k.weight")), 2)
                     .repeat_interleave(2, /*dim=*/1);
  const auto products = at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.);
  const auto pre = parameter(layer, "pre"), post = parameter(layer, "post");
  const auto w = parameter(layer, "conv_pre"), u = parameter(layer, "conv_post");
  Maps maps;
  const auto scores =
      convolution_by_loops(products.masked_fill(hidden, 0), w, keys_left(pad_key, w.size(2)));
  maps.z = at::einsum("bhij,hg->bgij", {scores, pre}) + bias;
  maps.p = masked_softmax(maps.z, allowed);
  const auto weights =
      convolution_by_loops(maps.p, u, keys_left(pad_key, u.size(2))).masked_fill(hidden, 0);
  maps.a = at::zeros_like(weights);
  for (int64_t h = 0; h < 4; ++h)
    for (int64_t g = 0; g < 4; ++g)
      if (h / 2 == g / 2) maps.a.select(1, g) += post[h / 2][h % 2][g % 2] * weights.select(1, h);
  maps.a = maps.a.masked_fill(hidden, 0);
  return maps;
}

}  // namespace

TEST_CASE("scores are convolved, mixed, biased and masked, weights convolved, mixed and masked",
          "[mta]") {
  for (const char* pad_key : {"both", "left", "right"}) {
    INFO(pad_key);
    const auto layer = make_layer("mta", small_shape(4, 2),
                                  std::string(kAll) + ", lambda_init: 0.3, pad_key: " + pad_key);
    const auto x = random({kBatch, kTokens, 20});
    const auto ctx = masked_context();
    const auto allowed = allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU);
    const auto maps = maps_by_hand(layer, x, allowed, ctx.bias, pad_key);
    REQUIRE(difference(map_of(*layer, x, ctx), maps.a) < 1e-12);

    const auto v =
        split_heads(at::linear(x, parameter(layer, "v.weight")), 2).repeat_interleave(2, /*dim=*/1);
    auto o = at::matmul(maps.a, v);
    o = o * (o.square().mean(-1, true) + 1e-5).rsqrt() * parameter(layer, "norm.weight") * 0.7;
    const auto g =
        at::sigmoid(at::linear(o, parameter(layer, "gate.weight"), parameter(layer, "gate.bias")));
    const auto y = at::linear((o * g).transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
    const auto out = layer->forward(x, ctx);
    REQUIRE(difference(out.y, y) < 1e-12);
    REQUIRE(difference(out.gates, g.squeeze(3).transpose(1, 2)) < 1e-12);
  }
}

TEST_CASE("a gate by element has a weight for each feature of what is said", "[mta]") {
  const auto layer = make_layer("mta", small_shape(), ", gate: element");
  const auto plain = make_layer("mha", small_shape());
  copy_weights(plain, layer);
  const auto x = random({kBatch, kTokens, 20});
  const auto v = split_heads(at::linear(x, parameter(layer, "v.weight")), 4);
  const auto o = at::matmul(map_of(*plain, x, causal()), v);
  const auto g =
      at::sigmoid(at::linear(o, parameter(layer, "gate.weight"), parameter(layer, "gate.bias")));
  const auto y = at::linear((o * g).transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
  const auto out = layer->forward(x, causal());
  REQUIRE(difference(out.y, y) < 1e-12);
  REQUIRE_FALSE(out.gates.defined());
}

TEST_CASE("identity kernels and mixings leave multi-head attention", "[mta]") {
  const auto x = random({kBatch, kTokens, 20});
  const auto mha = make_layer("mha", small_shape(4, 2), ", bias: true");
  const Rotary rotary;
  auto ctx = masked_context();
  ctx.rotary = &rotary;
  ctx.mask.window = 4;
  for (const char* options :
       {"", ", pre: true, post: 2", ", pre_kernel: [3, 5]", ", post_kernel: [2, 3]",
        ", pre_kernel: [6, 11], post_kernel: [6, 11], pre: true, post: 4"}) {
    INFO(options);
    // As it is before training, but for the weights that mha has too.
    const auto layer = fresh("mta", small_shape(4, 2), std::string(options) + ", bias: true");
    layer->to(at::kDouble);
    copy_weights(layer, mha);
    REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
    REQUIRE(difference(map_of(*layer, x, ctx), map_of(*mha, x, ctx)) < 1e-12);
  }
}

TEST_CASE("kernels of one pair and mixings of all heads are talking heads", "[mta]") {
  const auto talking = make_layer("talking", small_shape(4, 2));
  for (const char* kernels : {"", ", pre_kernel: [1, 1], post_kernel: [1, 1]"}) {
    const auto layer =
        make_layer("mta", small_shape(4, 2), std::string(", pre: true, post: 4") + kernels);
    copy_weights(layer, talking);
    set(layer, "post", parameter(talking, "post").unsqueeze(0));
    for (const char* kernel : {"conv_pre", "conv_post"})
      if (layer->named_parameters().contains(kernel)) set(layer, kernel, at::ones({4, 1, 1}));
    const auto x = random({kBatch, kTokens, 20});
    auto ctx = causal();
    ctx.bias = random({1, 4, kTokens, kTokens});
    ctx.mask.allowed = at::rand({kBatch, 1, kTokens, kTokens}) < 0.8;
    INFO(kernels);
    REQUIRE(difference(layer->forward(x, ctx).y, talking->forward(x, ctx).y) < 1e-12);
    REQUIRE(difference(map_of(*layer, x, ctx), map_of(*talking, x, ctx)) < 1e-12);
  }
}

TEST_CASE("what a head may not see it mixes into no other, with a kernel or without", "[mta]") {
  const auto plain = make_layer("mta", small_shape(), ", pre: true");
  const auto convolved = make_layer("mta", small_shape(), ", pre: true, pre_kernel: [1, 1]");
  copy_weights(convolved, plain);
  set(convolved, "conv_pre", at::ones({4, 1, 1}));
  const auto x = random({kBatch, kTokens, 20});
  const auto ctx = masked_context();  // differs by head
  REQUIRE(difference(plain->forward(x, ctx).y, convolved->forward(x, ctx).y) < 1e-12);
}

TEST_CASE("a window reaches further back by the rows that kernels span", "[mta]") {
  // Rows of 2 + 1 queries before; the first of them sees 3 keys.
  const auto layer = make_layer("mta", small_shape(), kAll);
  const auto x = random({kBatch, 12, 20});
  const auto before = layer->forward(x, causal(3)).y;
  const auto changed_from = [&](int64_t t) {
    auto other = x.clone();
    other.select(1, t).normal_();
    return difference(before.select(1, 11), layer->forward(other, causal(3)).y.select(1, 11));
  };
  REQUIRE(changed_from(11 - 2 - 1 - 2) > 1e-6);
  REQUIRE(changed_from(11 - 2 - 1 - 3) < 1e-12);
}

TEST_CASE("decoding of chosen examples goes on with their queries", "[mta]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("mta", small_shape(4, 2), kAll);
  const auto rows = at::tensor({1, 1, 0}, at::kLong);
  const auto x = random({3, 12, 20});
  auto begun = random({2, 9, 20});
  auto whole = at::cat({begun.index_select(0, rows), x.narrow(1, 9, 3)}, 1);  // [3,12,D]
  for (int64_t window : {0, 4}) {
    LayerCache cache;
    auto ctx = causal(window);
    ctx.cache = &cache;
    layer->forward(begun, ctx);
    cache.select(rows);
    auto plain = causal(window);
    const auto want = layer->forward(whole, plain).y;
    for (int64_t t = 9; t < 12; ++t)
      REQUIRE(difference(layer->forward(whole.narrow(1, t, 1), ctx).y, want.narrow(1, t, 1)) <
              1e-12);
  }
}

TEST_CASE("a memory is convolved from one decoding step to the next", "[mta]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("mta", small_shape(4, 2), kAll);
  const auto x = random({kBatch, kTokens, 20});
  HeadContext ctx;
  ctx.memory = random({kBatch, 5, 20});
  ctx.mask.key_length = at::tensor({int64_t{5}, int64_t{3}});
  const auto whole = layer->forward(x, ctx).y;
  LayerCache cache;
  ctx.cache = &cache;
  for (int64_t t = 0; t < kTokens; ++t)
    REQUIRE(difference(layer->forward(x.narrow(1, t, 1), ctx).y, whole.narrow(1, t, 1)) < 1e-12);
}

TEST_CASE("a window keeps the keys of the rows that are made anew, and no others", "[mta]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("mta", small_shape(), kAll);  // rows of 2 + 1 queries before
  LayerCache cache;
  auto ctx = causal(/*window=*/4);
  ctx.cache = &cache;
  for (int64_t t = 0; t < 20; ++t) layer->forward(random({kBatch, 1, 20}), ctx);
  REQUIRE(cache.append("k", random({kBatch, 4, 1, 6}), 4 + 3).size(2) == 4 + 3);
  REQUIRE(cache.append("q", random({kBatch, 4, 1, 6})).size(2) == 4 + 1);
}

TEST_CASE("kernels decode without masks and biases of single queries", "[mta]") {
  const auto x = random({kBatch, kTokens, 20});
  const auto decode = [&](const char* options, bool mask, at::IntArrayRef sizes) {
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    if (mask) ctx.mask.allowed = at::ones(sizes, at::kBool);
    if (!mask) ctx.bias = random(sizes);
    make_layer("mta", small_shape(), options)->forward(x, ctx);
  };
  for (bool mask : {true, false}) {
    REQUIRE_THROWS_WITH(decode(kAll, mask, {1, 1, kTokens, kTokens}),
                        Catch::Contains("masks and biases of keys alone"));
    REQUIRE_NOTHROW(decode(kAll, mask, {kBatch, 1, 1, kTokens}));
    REQUIRE_NOTHROW(decode(", pre: true, post: 2", mask, {1, 1, kTokens, kTokens}));
  }
}

TEST_CASE("what is left of groups mixes within them", "[mta]") {
  const auto layer = make_layer("mta", small_shape(), ", post: 2");
  const auto post = parameter(layer, "post");
  layer->mask_heads({1});
  const auto sliced = layer->slice();
  const auto left = parameter(sliced, "post");  // heads 0, 2, 3
  REQUIRE(left.sizes() == at::IntArrayRef({1, 3, 3}));
  REQUIRE(left[0][0][0].item<double>() == post[0][0][0].item<double>());
  REQUIRE(at::equal(left[0].narrow(0, 1, 2).narrow(1, 1, 2), post[1]));
  REQUIRE(left[0][0].narrow(0, 1, 2).abs().sum().item<double>() == 0);
  REQUIRE(left[0].select(1, 0).narrow(0, 1, 2).abs().sum().item<double>() == 0);
  sliced->mask_heads({2});
  REQUIRE(parameter(sliced->slice(), "post").sizes() == at::IntArrayRef({1, 2, 2}));
}

TEST_CASE("heads that mix with no other are independent", "[mta]") {
  const auto x = random({kBatch, kTokens, 20});
  for (const auto& [options, independent] : std::map<std::string, bool>{
           {", pre_kernel: [3, 5], post_kernel: [2, 3], norm: true, gate: head", true},
           {", pre_kernel: [3, 5], post: 1", true},
           {", pre_kernel: [3, 5], pre: true", false},
           {", post: 2", false}}) {
    INFO(options);
    const auto layer = make_layer("mta", small_shape(), options);
    REQUIRE(layer->traits().independent == independent);
    auto ctx = causal();
    ctx.gates = at::tensor({1., 0., 1., 1.}, at::kDouble).view({1, 4, 1});
    const auto gated = layer->forward(x, ctx).y;
    layer->mask_heads({1});
    REQUIRE((difference(gated, layer->forward(x, causal()).y) < 1e-12) == independent);
  }
  const auto sums = [](const char* options) {
    return make_layer("mta", small_shape(), options)->traits().rows_sum_to_one;
  };
  REQUIRE(sums(", pre_kernel: [3, 5], pre: true, norm: true"));
  REQUIRE_FALSE(sums(", post_kernel: [3, 5]"));
  REQUIRE_FALSE(sums(", post: 2"));
}

TEST_CASE("patterns are of the softmax, composed weights of what meets the values", "[mta]") {
  const auto layer = make_layer("mta", small_shape(4, 2), kAll);
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({7, 5}, at::kLong);
  const auto allowed = allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU);
  const auto maps = maps_by_hand(layer, x, allowed, at::zeros({1}, at::kDouble), "both");
  const auto got = statistics_of(*layer, x, ctx);
  const auto v =
      split_heads(at::linear(x, parameter(layer, "v.weight")), 2).repeat_interleave(2, 1);
  const auto mean = [](const Tensor& of_row, int64_t h) {  // over the rows that count
    return (of_row[0][h].sum() + of_row[1][h].narrow(0, 0, 5).sum()).item<double>() / 12;
  };
  const auto entropy = -at::xlogy(maps.p, maps.p).sum(-1);
  for (int64_t h = 0; h < 4; ++h) {
    INFO("head " << h);
    CHECK(got.at("entropy")[h] == Approx(mean(entropy, h)));
    CHECK(got.at("first_token")[h] == Approx(mean(maps.p.select(3, 0), h)));
    CHECK(got.at("output_norm")[h] == Approx(mean(at::matmul(maps.a, v).norm(2, -1), h)));
    CHECK(got.at("composed_row_sum")[h] == Approx(mean(maps.a.sum(-1), h)));
    CHECK(got.at("composed_negative_mass")[h] == Approx(mean(-maps.a.clamp_max(0).sum(-1), h)));
    CHECK(got.at("composed_first_token")[h] == Approx(mean(maps.a.select(3, 0), h)));
  }
  const auto share = [](const Tensor& m) {
    return 1 - (m.abs().trace() / m.abs().sum()).item<double>();
  };
  CHECK(got.at("pre_off_diagonal")[0] == Approx(share(parameter(layer, "pre").detach())));
  CHECK(got.at("post_off_diagonal")[0] ==
        Approx(share(at::block_diag(parameter(layer, "post").detach().unbind(0)))));
  for (const char* options : {"", ", pre_kernel: [3, 5]", ", post_kernel: [3, 5]", ", post: 2"}) {
    const auto other = make_layer("mta", small_shape(), options);
    const auto values = statistics_of(*other, x, causal());
    const auto own = other->own_statistics();
    INFO(options);
    for (const auto& statistic : own) CHECK(values.count(statistic.name) == 1);
    CHECK(values.count("composed_row_sum") == (other->traits().rows_sum_to_one ? 0 : 1));
  }
}

TEST_CASE("heads whose weights are made equal have them convolved as such", "[mta]") {
  const auto layer =
      make_layer("mta", small_shape(), ", pre_kernel: [3, 5], pre: true, post_kernel: [2, 3]");
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.uniform = at::tensor({0, 1, 0, 0}).to(at::kBool);
  const auto map = map_of(*layer, x, ctx);
  const auto equal = at::ones({kTokens, kTokens}, at::kDouble).tril() /
                     at::arange(1, kTokens + 1, at::kDouble).unsqueeze(1);
  const auto kernel = parameter(layer, "conv_post").detach().narrow(0, 1, 1);
  const auto want = convolution_by_loops(equal.expand({kBatch, 1, kTokens, kTokens}), kernel, 1);
  REQUIRE(difference(map.narrow(1, 1, 1), want.tril()) < 1e-12);
  REQUIRE(difference(map.select(1, 0), map_of(*layer, x, causal()).select(1, 0)) < 1e-12);
}

TEST_CASE("kernels begin at the pair itself, projections within three deviations", "[mta]") {
  auto shape = small_shape();
  shape.d_model = 400;
  const auto layer = fresh("mta", shape, ", pre_kernel: [3, 4], pad_key: right, post: 2");
  auto kernel = at::zeros({4, 3, 4});
  kernel.select(1, 2).select(1, 2).fill_(1);
  REQUIRE(at::equal(parameter(layer, "conv_pre"), kernel));
  REQUIRE(at::equal(parameter(layer, "post"), at::eye(2).expand({2, 2, 2})));
  for (const char* name : {"q.weight", "k.weight", "v.weight", "o.weight"}) {
    const auto w = parameter(layer, name).detach();
    INFO(name);
    CHECK(w.std().item<double>() == Approx(0.05).epsilon(0.05));
    CHECK(w.abs().max().item<double>() <= 0.15 + 1e-6);
  }
}

TEST_CASE("a convolution costs 2 cq ck operations a pair and head", "[mta]") {
  const auto cost = [&](const char* options) {
    return make_layer("mta", small_shape(), options)->flops(7, 7, 28) -
           make_layer("mha", small_shape())->flops(7, 7, 28);
  };
  REQUIRE(cost("") == 0);
  REQUIRE(cost(", pre_kernel: [3, 5]") == 2 * 15 * 4 * 28);
  REQUIRE(cost(", pre_kernel: [3, 5], post_kernel: [2, 3]") == 2 * 21 * 4 * 28);
  REQUIRE(cost(", pre: true, post: 2") == (2 * 16 + 2 * 2 * 4) * 28);
  REQUIRE(cost(", gate: element") == 2 * 36 * 4 * 7);
}

TEST_CASE("multi-token heads refuse what does not fit", "[mta]") {
  const auto refused = [](const char* options, const char* why) {
    REQUIRE_THROWS_WITH(make_layer("mta", small_shape(), options), Catch::Contains(why));
  };
  refused(", pre_kernel: [3, 4]", "attention.pre_kernel: 4 keys have no middle");
  refused(", post_kernel: [3, 4]", "attention.post_kernel: 4 keys have no middle");
  REQUIRE_NOTHROW(make_layer("mta", small_shape(), ", pre_kernel: [3, 4], pad_key: left"));
  refused(", pre_kernel: [3]", "attention.pre_kernel: wants two sizes");
  refused(", post_kernel: [3, 5, 1]", "attention.post_kernel: wants two sizes");
  refused(", pre_kernel: [0, 5]", "attention.pre_kernel");
  refused(", post: 3", "attention.post: groups of 3 do not divide 4 heads");
  refused(", post: 8", "attention.post: groups of 8 do not divide 4 heads");
  refused(", post: -1", "attention.post");
  refused(", lambda_init: 0.3", "attention.lambda_init: there is no norm");
  refused(", pad_key: middle", "attention.pad_key");
  refused(", gate: heads", "attention.gate");
  refused(", norm: true, norm_eps: 0", "attention.norm_eps");
  refused(", qk_norm: true", "attention.qk_norm");

  const auto x = random({kBatch, kTokens, 20});
  const auto layer = make_layer("mta", small_shape(), ", pre_kernel: [3, 5]");
  for (auto backend : {Backend::kSdpa, Backend::kFlash}) {
    auto ctx = causal();
    ctx.backend = backend;
    REQUIRE_THROWS_AS(layer->forward(x, ctx), BackendError);
    REQUIRE_NOTHROW(make_layer("mta", small_shape())->forward(x, ctx));
  }
}

}  // namespace headlab::test_mta
