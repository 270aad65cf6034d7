// dcmha by what its paper says of it: identities, reductions to mha, absent heads, decoding.
#include "tests/catch.h"
#include "tests/dcmha_testing.h"

namespace headlab::test_dcmha {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 9, D = 20, H = 4, R = 2;

Tensor& parameter(AttentionHeads& heads, const std::string& name) {
  static std::map<std::string, Tensor> kept;
  kept[name] = heads.named_parameters()[name];
  return kept[name];
}

bool has(const AttentionHeads& heads, const std::string& name) {
  return heads.named_parameters().contains(name);
}

Tensor map_of(AttentionHeads& heads, const Tensor& x, HeadContext ctx) {
  HeadProbe probe;
  probe.maps = true;
  ctx.observer = &probe;
  heads.forward(x, ctx);
  return probe.layer_maps().begin()->second;
}

// A copy of `heads` with the same parameters under the same names, of another kind or other
// options.
std::shared_ptr<AttentionHeads> like(AttentionHeads& heads, const std::string& kind,
                                     const std::string& options) {
  auto other = make_layer(kind, small_shape(), options);
  at::NoGradGuard no_grad;
  const auto from = heads.named_parameters();
  for (auto& p : other->named_parameters())
    if (const auto* same = from.find(p.key())) p.value().copy_(*same);
  return other;
}

// [T,H,H]: I + w + sum_r w1_i[r]^T w2_i[r] + diag(g_i), branch c of section 1, written as it
// stands.
Tensor query_matrix(AttentionHeads& heads, const Tensor& x, int64_t c) {
  const auto dw1 = parameter(heads, "compose.dw1").select(1, c);  // [D,K]
  const auto qkw = parameter(heads, "compose.qkw")[c];            // [K,2R,H]
  const auto dd = parameter(heads, "compose.dd").narrow(1, c * H, H);
  auto matrices = at::empty({x.size(0), H, H}, at::kDouble);
  for (int64_t i = 0; i < x.size(0); ++i) {
    const auto u = at::tensordot(at::gelu(x[i].matmul(dw1), "tanh"), qkw, {0}, {0});  // [2R,H]
    auto m = at::eye(H, at::kDouble) + at::diag(x[i].matmul(dd).tanh());
    for (int64_t r = 0; r < R; ++r)
      m = m + at::outer(u[r] / (u[r].square().mean() + 1e-6).sqrt(), u[R + r]);
    matrices[i] = m;
  }
  return matrices;
}

}  // namespace

TEST_CASE("dcmha without low-rank rows, gates and fixed mixing is mha, and still learns",
          "[dcmha]") {
  torch::manual_seed(1);
  auto heads = dcmha(", static: true, bias: true");
  {
    at::NoGradGuard no_grad;
    parameter(*heads, "compose.qkw").narrow(2, R, R).zero_();
    for (const char* name : {"compose.dd", "compose.pre", "compose.post"})
      parameter(*heads, name).zero_();
  }
  const auto mha = like(*heads, "mha", ", bias: true");
  const auto x = random({B, T, D});
  REQUIRE(relative_difference(heads->forward(x, causal()).y, mha->forward(x, causal()).y) < 1e-12);
  const auto g = gradients(*heads, x, causal());
  for (const char* name : {"compose.dd", "compose.pre", "compose.post"})
    REQUIRE(g.of.at(name).abs().max().item<double>() > 1e-6);
  REQUIRE(g.of.at("compose.qkw").narrow(2, R, R).abs().max().item<double>() > 1e-6);

  auto neither = dcmha(", pre: false, post: false, static: true");
  REQUIRE(neither->traits().independent);
  REQUIRE(neither->own_statistics().empty());
  const auto plain = like(*neither, "mha", "");
  REQUIRE(relative_difference(neither->forward(x, causal()).y, plain->forward(x, causal()).y) == 0);
}

TEST_CASE("dcmha with the fixed mixing alone mixes all pairs alike", "[dcmha]") {
  torch::manual_seed(2);
  auto heads = dcmha(", query_wise: false, key_wise: false, static: true");
  const auto x = random({B, T, D});
  auto products = [&](const char* name) {
    return split_heads(x.matmul(parameter(*heads, name).t()), H);
  };
  auto mix = [&](const Tensor& a, const char* name) {
    return at::einsum("bmij,mn->bnij", {a, at::eye(H, at::kDouble) + parameter(*heads, name)});
  };
  const auto z = products("q.weight").matmul(products("k.weight").transpose(2, 3)) / std::sqrt(6.);
  const auto a = mix(at::softmax(mix(z, "compose.pre"), -1), "compose.post");
  const auto y = merge_heads(a.matmul(products("v.weight")), HeadCall::from_context({}))
                     .matmul(parameter(*heads, "o.weight").t());
  REQUIRE(relative_difference(heads->forward(x).y, y) < 1e-12);
  REQUIRE(relative_difference(map_of(*heads, x, {}), a) < 1e-12);
}

TEST_CASE("dcmha does not depend on the order of its heads or of its rows", "[dcmha]") {
  torch::manual_seed(3);
  auto heads = dcmha(", static: true");
  const auto x = random({B, T, D});
  const auto y = heads->forward(x, causal()).y;
  at::NoGradGuard no_grad;
  auto& qkw = parameter(*heads, "compose.qkw");  // [4,K,2R,H]
  qkw.copy_(qkw.index_select(2, at::tensor({1, 0, 3, 2})));
  REQUIRE(relative_difference(heads->forward(x, causal()).y, y) < 1e-12);
  for (int64_t row : {int64_t{0}, R}) qkw.select(2, row).neg_();
  REQUIRE(relative_difference(heads->forward(x, causal()).y, y) < 1e-12);

  const auto order = at::tensor({2, 0, 3, 1});
  for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
    auto& w = parameter(*heads, name);
    w.copy_(w.view({H, 6, D}).index_select(0, order).view({H * 6, D}));
  }
  auto& o = parameter(*heads, "o.weight");
  o.copy_(o.view({D, H, 6}).index_select(1, order).view({D, H * 6}));
  qkw.copy_(qkw.index_select(3, order));
  auto& dd = parameter(*heads, "compose.dd");
  dd.copy_(dd.view({D, 4, H}).index_select(2, order).view({D, 4 * H}));
  for (const char* name : {"compose.pre", "compose.post"}) {
    auto& w = parameter(*heads, name);
    w.copy_(w.index_select(0, order).index_select(1, order));
  }
  REQUIRE(relative_difference(heads->forward(x, causal()).y, y) < 1e-12);
}

TEST_CASE("without the key's part a composed row sums to its column of the query's matrix",
          "[dcmha]") {
  torch::manual_seed(4);
  auto heads = dcmha(", key_wise: false");
  const auto x = random({1, T, D});
  const auto sums = map_of(*heads, x, causal()).sum(-1)[0];  // [H,T]
  REQUIRE(relative_difference(sums.t(), query_matrix(*heads, x[0], 2).sum(1)) < 1e-12);
}

TEST_CASE("one pair alone gives what does not depend on queries, keys and the first composition",
          "[dcmha]") {
  torch::manual_seed(5);
  auto heads = dcmha(", static: true");
  const auto x = random({B, 1, D});
  const auto y = heads->forward(x, causal()).y;
  at::NoGradGuard no_grad;
  for (const char* name : {"q.weight", "k.weight", "compose.pre"})
    parameter(*heads, name).normal_();
  parameter(*heads, "compose.qkw").narrow(0, 0, 2).normal_();
  REQUIRE(relative_difference(heads->forward(x, causal()).y, y) < 1e-12);
  parameter(*heads, "compose.qkw").narrow(0, 2, 2).normal_();
  REQUIRE(relative_difference(heads->forward(x, causal()).y, y) > 1e-6);
}

TEST_CASE("dcmha attends to a memory by the query's branches of x and the key's of the memory",
          "[dcmha]") {
  torch::manual_seed(6);
  for (const auto& options : kDcmhaOptions) {
    INFO(options);
    auto heads = dcmha(options);
    const auto x = random({B, T, D});
    HeadContext ctx;
    ctx.memory = x;
    REQUIRE(relative_difference(heads->forward(x, ctx).y, heads->forward(x).y) < 1e-12);
  }
}

TEST_CASE("the mask of dcmha comes behind the first composition, the bias too", "[dcmha]") {
  torch::manual_seed(8);
  auto heads = dcmha(", post: false");
  const auto x = random({B, T, D});
  HeadContext ctx;
  const auto plain = map_of(*heads, x, ctx);
  ctx.bias = random({1, H, T, T});
  // A bias on the composed scores is a factor on the weights before they are normalised.
  auto biased = plain * ctx.bias.exp();
  REQUIRE(relative_difference(map_of(*heads, x, ctx), biased / biased.sum(-1, true)) < 1e-12);
}

TEST_CASE("parameters of dcmha exist where their branch or side is on", "[dcmha]") {
  auto all = dcmha(", static: true, qk_norm: true");
  for (const char* name : {"compose.dw1", "compose.qkw", "compose.dd", "compose.pre",
                           "compose.post", "q_norm.weight", "k_norm.weight"})
    REQUIRE(has(*all, name));
  REQUIRE(parameter(*all, "compose.dw1").sizes() == at::IntArrayRef({D, 4, 2 * R * H}));
  REQUIRE(parameter(*all, "compose.qkw").sizes() == at::IntArrayRef({4, 2 * R * H, 2 * R, H}));
  REQUIRE(parameter(*all, "compose.dd").sizes() == at::IntArrayRef({D, 4 * H}));
  auto half = dcmha(", pre: false, static: true");
  REQUIRE_FALSE(has(*half, "compose.pre"));
  REQUIRE(has(*half, "compose.post"));
  auto fixed = dcmha(", query_wise: false, key_wise: false, static: true");
  REQUIRE_FALSE(has(*fixed, "compose.dw1"));
  REQUIRE(has(*fixed, "compose.pre"));
  REQUIRE_FALSE(has(*dcmha(", pre: false, post: false"), "compose.dd"));
  REQUIRE_FALSE(has(*all, "q.bias"));
}

TEST_CASE("slices of branches that are off get a gradient of zero", "[dcmha]") {
  torch::manual_seed(9);
  const std::vector<std::pair<std::string, std::vector<bool>>> cases{
      {", pre: false", {false, false, true, true}},
      {", query_wise: false", {false, true, false, true}},
      {", post: false, key_wise: false", {true, false, false, false}}};
  for (const auto& [options, on] : cases) {
    auto heads = dcmha(options);
    const auto g = gradients(*heads, random({B, T, D}), causal());
    for (int64_t c = 0; c < 4; ++c) {
      INFO(options << ", branch " << c);
      for (const auto& slice : {g.of.at("compose.dw1").select(1, c), g.of.at("compose.qkw")[c],
                                g.of.at("compose.dd").narrow(1, c * H, H)})
        REQUIRE((slice.abs().max().item<double>() > 0) == on[c]);
    }
  }
}

TEST_CASE("dcmha starts as the released code does", "[dcmha]") {
  HeadShape s = small_shape(16, 16);
  s.d_model = 256;
  KindBlock block(head_registry(), "dcmha");
  Problems problems;
  block.read(parse_config("{kind: dcmha, static: true}", "test"), "attention", problems);
  torch::manual_seed(10);
  const auto heads = make_heads(block, s);
  const double n = 16, k = 64, d = 256;
  const std::map<std::string, double> want{{"compose.dw1", std::sqrt(2 / (d + k))},
                                           {"compose.qkw", 0.02 / (std::sqrt(k) * (n + 2))},
                                           {"compose.dd", 0.005 * std::sqrt(2 / (d + n))},
                                           {"compose.pre", 0.1 / std::sqrt(n)},
                                           {"compose.post", 0.1 / std::sqrt(n)},
                                           {"q.weight", 0.006},
                                           {"o.weight", 0.006}};
  for (const auto& [name, std] : want) {
    INFO(name);
    const auto w = heads->named_parameters()[name];
    const double tolerance = 5 / std::sqrt(static_cast<double>(w.numel()));
    REQUIRE(w.std().item<double>() == Approx(std).epsilon(tolerance));
    REQUIRE(std::abs(w.mean().item<double>()) < tolerance * std);
  }
}

TEST_CASE("dcmha without some heads equals its slice for every option", "[dcmha]") {
  torch::manual_seed(11);
  const std::vector<int64_t> gone{0, 3};
  for (const auto& options : kDcmhaOptions) {
    INFO(options);
    auto heads = dcmha(options);
    const auto x = random({B, T, D});
    auto ctx = causal();
    ctx.bias = random({B, H, T, T});
    ctx.mask.allowed = at::rand({B, H, T, T}) < 0.8;
    heads->mask_heads(gone);
    const auto sliced = heads->slice();
    REQUIRE(relative_difference(heads->forward(x, ctx).y, sliced->forward(x, ctx).y) < 1e-12);
    if (has(*heads, "compose.dw1"))
      REQUIRE(sliced->named_parameters()["compose.dw1"].sizes() ==
              parameter(*heads, "compose.dw1").sizes());
    // The removed heads had an effect on the others, unlike an output gate of 0.
    auto gated = ctx;
    gated.gates = at::ones({1, H, 1}, at::kDouble);
    for (int64_t h : gone) gated.gates[0][h] = 0;
    heads->mask_heads({});
    REQUIRE(relative_difference(heads->forward(x, gated).y, sliced->forward(x, ctx).y) > 1e-6);
  }
}

TEST_CASE("dcmha counts its operations", "[dcmha]") {
  const double mha = make_layer("mha", small_shape())->flops(7, 7, 28);
  const double k = 2 * R * H;
  const double token = 4 * D * k + 8 * k * R * H + 4 * D * H, pair = 4 * (2 * R + 1) * H;
  REQUIRE(dcmha()->flops(7, 7, 28) == mha + 2 * (7 * token + 28 * pair));
  REQUIRE(dcmha(", static: true")->flops(7, 7, 28) ==
          dcmha()->flops(7, 7, 28) + 2 * 28 * 2 * H * H);
  REQUIRE(dcmha(", pre: false, key_wise: false")->flops(7, 7, 28) ==
          mha + 2 * (7 * token + 28 * pair) / 4);
  REQUIRE(dcmha(", pre: false, post: false")->flops(7, 7, 28) == mha);
}

TEST_CASE("wrong options of dcmha are refused with their places", "[dcmha]") {
  auto refused = [](const std::string& options, const std::string& words,
                    const HeadShape& shape = small_shape()) {
    INFO(options);
    REQUIRE_THROWS_WITH(make_layer("dcmha", shape, options), Catch::Contains(words));
    REQUIRE_THROWS_AS(make_layer("dcmha", shape, options), ConfigError);
  };
  refused(", rank: 0", "attention.rank");
  refused(", hidden: 0", "attention.hidden");
  refused(", gelu: relu", "attention.gelu");
  refused(", qk_norm_kind: batch", "attention.qk_norm_kind");
  refused(", statik: true", "did you mean 'static'");
  refused("", "not grouped", small_shape(4, 2));
}

}  // namespace headlab::test_dcmha
