// Forgetting heads: the formulas written out, reductions to multi-head attention, decoding, half
// types, statistics, options.
#include <ATen/autocast_mode.h>

#include <numbers>

#include "tests/layers_testing.h"

namespace headlab::test_forgetting {
using namespace testing;

namespace {

const std::string kPro =
    ", output_gate: sigmoid, output_norm: true, qk_norm: per_head, k_shift: true, v_shift: true";

Tensor heads_of(const Layer& layer, const Tensor& x, const char* name) {
  return split_heads(at::linear(x, parameter(layer, name)), kHeads);
}

// alpha u_(t-1) + (1 - alpha) u_t, token by token.
Tensor mixed(const Layer& layer, const Tensor& x, const char* name, const char* shift) {
  const auto u = heads_of(layer, x, name);
  const auto alpha = at::sigmoid(at::linear(x, parameter(layer, shift)));  // [B,T,H]
  auto all = at::zeros_like(u);
  for (int64_t t = 0; t < x.size(1); ++t) {
    const auto a = alpha.select(1, t).unsqueeze(2);  // [B,H,1]
    const auto before = t > 0 ? u.select(2, t - 1) : at::zeros_like(u.select(2, 0));
    all.select(2, t).copy_(a * before + (1 - a) * u.select(2, t));
  }
  return all;
}

// By head, over its six features.
Tensor normed(const Layer& layer, const Tensor& x, const char* name, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * parameter(layer, name).view({-1, 1, 6});
}

// f_(j+1) ... f_i by products of the gates, not by differences of their sums: [B,H,T,T].
Tensor products(const Tensor& f) {
  const int64_t T = f.size(2);
  auto all = at::zeros({f.size(0), f.size(1), T, T}, f.options());
  for (int64_t i = 0; i < T; ++i)
    for (int64_t j = 0; j <= i; ++j)
      all.select(2, i).select(2, j).copy_(f.narrow(2, j + 1, i - j).prod(2));
  return all;
}

Tensor forget_gates(const Layer& layer, const Tensor& x) {  // [B,H,T]
  return at::sigmoid(
             at::linear(x, parameter(layer, "forget.weight"), parameter(layer, "forget.bias")))
      .transpose(1, 2);
}

// Weights are exp(scale q k^T) times the products of the gates, divided by their sum.
Tensor weights(const Tensor& q, const Tensor& k, const Tensor& f) {
  const auto w = at::exp(at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.)) * products(f);
  return w / w.sum(-1, true);
}

Tensor joined(const Layer& layer, const Tensor& o) {
  return at::linear(o.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
}

void set_gates(const Layer& layer, const Tensor& f) {  // [H], of every token
  set(layer, "forget.bias", at::logit(f));
}

// Long, and with gates that forget fast: c goes to several hundreds.
constexpr int64_t kLong = 500;

struct Autocast {
  Autocast() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

}  // namespace

TEST_CASE("a weight is the exponential of its score times the gates between key and query",
          "[forgetting]") {
  const auto layer = make_layer("forgetting", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto a = weights(heads_of(layer, x, "q.weight"), heads_of(layer, x, "k.weight"),
                         forget_gates(layer, x));
  const auto v = heads_of(layer, x, "v.weight");
  const auto seen = run(layer, x, causal());
  REQUIRE(difference(seen.map, a) < 1e-12);
  REQUIRE(difference(seen.y, joined(layer, at::matmul(a, v))) < 1e-12);
  require_statistics_of_map(layer, seen, v);
}

TEST_CASE("Pro mixes keys and values with those before, norms, and gates what heads say",
          "[forgetting]") {
  for (const std::string act : {"sigmoid", "silu"}) {
    auto options = kPro;
    options.replace(options.find("sigmoid"), 7, act);
    const auto layer = make_layer("forgetting", small_shape(), options);
    const auto x = random({kBatch, kTokens, 20});
    const auto q = normed(layer, heads_of(layer, x, "q.weight"), "q_norm.weight", 1e-5),
               k = normed(layer, mixed(layer, x, "k.weight", "k_shift.weight"), "k_norm.weight",
                          1e-5);
    const auto a = weights(q, k, forget_gates(layer, x));
    auto o = at::matmul(a, mixed(layer, x, "v.weight", "v_shift.weight"));
    o = normed(layer, o, "norm.weight", 1e-6);
    const auto gate = heads_of(layer, x, "gate.weight");
    o = o * gate.sigmoid() * (act == "silu" ? gate : at::ones_like(gate));
    const auto seen = run(layer, x, causal());
    REQUIRE(difference(seen.map, a) < 1e-12);
    REQUIRE(difference(seen.y, joined(layer, o)) < 1e-12);
  }
}

TEST_CASE("gates that forget nothing leave multi-head attention", "[forgetting]") {
  const auto layer = make_layer("forgetting", small_shape()),
             mha = make_layer("mha", small_shape());
  copy_weights(mha, layer);
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE(difference(layer->forward(x, causal()).y, mha->forward(x, causal()).y) > 1e-3);
  set(layer, "forget.bias", at::full({kHeads}, 60, at::kDouble));
  const Rotary rotary;
  auto ctx = causal(4);
  ctx.rotary = &rotary;
  REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
}

TEST_CASE("constant gates are the slopes of ALiBi", "[forgetting]") {
  const auto mha = make_layer("mha", small_shape());
  const Alibi alibi(kHeads, at::kDouble);
  auto biased = causal();
  biased.position_bias = &alibi;
  const auto x = random({kBatch, kTokens, 20});
  for (const std::string forget : {"full", "bias_only"}) {
    const auto layer = make_layer("forgetting", small_shape(), ", forget: " + forget);
    copy_weights(mha, layer);
    if (forget == "full") set(layer, "forget.weight", at::zeros({kHeads, 20}));
    set_gates(layer, (-alibi_slopes(kHeads)).exp());
    REQUIRE(difference(layer->forward(x, causal()).y, mha->forward(x, biased).y) < 1e-12);
  }
}

TEST_CASE("a factor of 0 on q k leaves what the gates say", "[forgetting]") {
  const auto layer = make_layer("forgetting", small_shape(), ", scale: 0");
  const auto x = random({kBatch, kTokens, 20});
  const auto w = products(forget_gates(layer, x));
  REQUIRE(difference(map_of(*layer, x, causal()), w / w.sum(-1, true)) < 1e-12);
}

TEST_CASE("times say after how many tokens each head keeps 1/e at first", "[forgetting]") {
  const auto bias_of = [](const std::string& options) {
    const auto layer = fresh("forgetting", small_shape(), options);
    for (const auto& named : {layer->named_parameters(), layer->named_buffers()})
      if (const auto* bias = named.find("forget.bias")) return *bias;
    FAIL("no forget.bias");
    return Tensor();
  };
  REQUIRE(bias_of("").equal(at::zeros({kHeads})));
  for (const std::string forget : {"full", "bias_only", "fixed"}) {
    const auto f =
        at::sigmoid(bias_of(", forget: " + forget + ", time_min: 2, time_max: 54").to(at::kDouble));
    const auto times = at::tensor({2., 6., 18., 54.}, at::kDouble);
    REQUIRE(difference(f.pow(times), at::full({kHeads}, std::exp(-1.), at::kDouble)) < 1e-6);
  }
  // So short that exp(1/t) is beyond every type.
  REQUIRE(bias_of(", time_min: 1e-4, time_max: 1e-4")[0].item<float>() == Approx(-1e4));
}

TEST_CASE("only what is no parameter stays as it is", "[forgetting]") {
  const auto fixed = make_layer("forgetting", small_shape(), ", forget: fixed");
  REQUIRE(fixed->named_parameters().find("forget.bias") == nullptr);
  REQUIRE(fixed->named_buffers().find("forget.bias") != nullptr);
  const auto bias = make_layer("forgetting", small_shape(), ", forget: bias_only");
  REQUIRE(bias->named_parameters().find("forget.bias") != nullptr);
  REQUIRE(bias->named_parameters().find("forget.weight") == nullptr);
}

TEST_CASE("hidden tokens before a sequence change nothing of it, in shifts neither",
          "[forgetting]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("forgetting", small_shape(), kPro);
  const auto x = random({kBatch, 12, 20});
  auto padded = causal();
  padded.mask.allowed = (at::arange(12) >= 3).view({1, 1, 1, 12});
  const auto alone = layer->forward(x.narrow(1, 3, 9), causal()).y;
  REQUIRE(difference(layer->forward(x, padded).y.narrow(1, 3, 9), alone) < 1e-12);
  // A mask that differs by query hides no token from all: its key goes on into the next.
  auto by_query = padded;
  by_query.mask.allowed = padded.mask.allowed.expand({1, 1, 12, 12}).contiguous();
  REQUIRE(difference(layer->forward(x, by_query).y.narrow(1, 3, 9), alone) > 1e-3);
  // The same token by token, each example with a padding of its own.
  padded.mask.allowed = at::arange(12) >= at::tensor({3, 5}).view({kBatch, 1, 1, 1});
  const auto whole = layer->forward(x, padded).y;
  LayerCache cache;
  for (int64_t t = 0; t < 12; ++t) {
    auto step = padded;
    step.cache = &cache;
    step.mask.allowed = padded.mask.allowed.narrow(3, 0, t + 1);
    REQUIRE(difference(layer->forward(x.narrow(1, t, 1), step).y, whole.narrow(1, t, 1)) < 1e-12);
  }
}

TEST_CASE("a cache goes on with the examples that a beam keeps", "[forgetting]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("forgetting", small_shape(), kPro);
  const auto x = random({3, 9, 20});
  const auto kept = at::tensor({2, 0, 2}, at::kLong);
  for (int64_t window : {0, 3}) {
    LayerCache cache;
    auto ctx = causal(window);
    const auto whole = layer->forward(x.index_select(0, kept), ctx).y;
    ctx.cache = &cache;
    layer->forward(x.narrow(1, 0, 5), ctx);
    cache.select(kept);
    for (int64_t t = 5; t < 9; ++t) {
      const auto next = x.index_select(0, kept).narrow(1, t, 1);
      REQUIRE(difference(layer->forward(next, ctx).y, whole.narrow(1, t, 1)) < 1e-12);
    }
  }
}

TEST_CASE("biases and uniform heads hold while decoding", "[forgetting]") {
  at::NoGradGuard no_grad;
  const auto layer = make_layer("forgetting", small_shape());
  const auto x = random({kBatch, 9, 20});
  auto ctx = causal();
  ctx.bias = random({1, kHeads, 9, 9});
  ctx.uniform = at::arange(kHeads) == 1;
  const auto whole = layer->forward(x, ctx).y;
  LayerCache cache;
  for (int64_t t = 0; t < 9; ++t) {
    auto step = ctx;
    step.cache = &cache;
    step.bias = ctx.bias.narrow(2, t, 1).narrow(3, 0, t + 1);
    REQUIRE(difference(layer->forward(x.narrow(1, t, 1), step).y, whole.narrow(1, t, 1)) < 1e-12);
  }
}

TEST_CASE("every path of attention serves forgetting, with its gradients", "[forgetting]") {
  const auto layer = make_layer("forgetting", small_shape(), kPro);
  const auto x = random({kBatch, 90, 20}), cotangent = random({kBatch, 90, 20});
  for (int64_t window : {0, 5}) {
    const auto passed = [&](Backend backend) {
      auto ctx = causal(window);
      ctx.mask.key_length = at::tensor({90, 70});
      ctx.backend = backend;
      layer->zero_grad();
      const auto y = layer->forward(x, ctx).y;
      (y * cotangent).sum().backward();
      std::vector<Tensor> all{y.detach()};
      for (const auto& p : layer->parameters()) all.push_back(p.grad().clone());
      return all;
    };
    const auto eager = passed(Backend::kEager);
    for (auto backend : {Backend::kFlash, Backend::kSdpa}) {
      const auto other = passed(backend);
      for (size_t n = 0; n < eager.size(); ++n)
        REQUIRE(relative_difference(other[n], eager[n]) < 1e-12);
    }
  }
}

TEST_CASE("what has been forgotten long ago costs no precision", "[forgetting]") {
  at::NoGradGuard no_grad;
  const auto exact = make_layer("forgetting", small_shape());
  for (auto& p : exact->parameters()) p.copy_(p.to(at::kBFloat16));
  const auto half = exact->slice(), single = exact->slice(), cast = exact->slice();
  half->to(at::kBFloat16), single->to(at::kFloat), cast->to(at::kFloat);
  const auto x = random({1, kLong, 20}).to(at::kBFloat16);
  const auto c = forget_gates(exact, x.to(at::kDouble)).log().sum(2);
  REQUIRE(c.max().item<double>() < -300);  // where bfloat16 counts in steps of 2
  const auto want = exact->forward(x.to(at::kDouble), causal()).y;
  const auto error = [&](const Tensor& got) {
    return relative_difference(got.to(at::kDouble), want);
  };
  for (auto backend : {Backend::kAuto, Backend::kEager}) {
    auto ctx = causal();
    ctx.backend = backend;
    CHECK(error(single->forward(x.to(at::kFloat), ctx).y) < 3e-5);
    CHECK(error(half->forward(x, ctx).y) < 0.03);
  }
  const Autocast on;
  CHECK(error(cast->forward(x.to(at::kFloat), causal()).y) < 0.03);
}

TEST_CASE("the mean gate and the time after which half is forgotten are logged", "[forgetting]") {
  const auto layer = make_layer("forgetting", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({kTokens, int64_t{4}});
  const auto got = statistics_of(*layer, x, ctx);
  const auto f = forget_gates(layer, x);
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto counted = at::cat({f[0][h], f[1][h].narrow(0, 0, 4)});
    CHECK(got.at("forget_mean")[h] == Approx(counted.mean().item<double>()));
    CHECK(got.at("half_life")[h] ==
          Approx(-std::numbers::ln2 / counted.log().mean().item<double>()));
  }
  set(layer, "forget.weight", at::zeros({kHeads, 20}));
  set_gates(layer, at::tensor({0.5, 0.25, std::exp2(-0.1), std::exp2(-0.01)}, at::kDouble));
  const auto constant = statistics_of(*layer, x, causal()).at("half_life");
  const std::vector<double> want{1, 0.5, 10, 100};
  for (int64_t h = 0; h < kHeads; ++h) CHECK(constant[h] == Approx(want[h]));
}

TEST_CASE("heads have matrices of two tokens unless keys or values are mixed", "[forgetting]") {
  REQUIRE(make_layer("forgetting", small_shape(), ", output_gate: silu")->matrices());
  REQUIRE_FALSE(make_layer("forgetting", small_shape(), ", k_shift: true")->matrices());
  REQUIRE_FALSE(make_layer("forgetting", small_shape(), ", v_shift: true")->matrices());
}

TEST_CASE("operations are those of the projections and of both products with the map",
          "[forgetting]") {
  const double D = 20, H = 4, width = 24, T = 7, pairs = 28;
  const auto flops = [&](const std::string& options) {
    return make_layer("forgetting", small_shape(), options)->flops(7, 7, pairs);
  };
  const double plain = 2 * T * 4 * D * width + 4 * pairs * width;
  CHECK(flops(", forget: fixed") == plain);
  CHECK(flops("") == plain + 2 * T * D * H);
  CHECK(flops(kPro) == plain + 2 * T * (3 * D * H + D * width));
}

TEST_CASE("forgetting heads refuse what they have not, by name", "[forgetting]") {
  const auto refused = [](const std::string& options, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_WITH(make_layer("forgetting", small_shape(), options), Catch::Contains(message));
  };
  refused(", forget: never", "attention.forget");
  refused(", time_min: 3", "attention.time_min: times are given both or not at all");
  refused(", time_max: 3", "attention.time_max: times are given both or not at all");
  refused(", time_min: 4, time_max: 3", "attention.time_min: is above time_max");
  refused(", time_min: 0, time_max: 3", "attention.time_min: must be above 0");
  refused(", output_gate: relu", "attention.output_gate");
  refused(", qk_norm: true", "attention.qk_norm");
  refused(", norm_eps: 0", "attention.norm_eps");
  refused(", bias: true", "bias");
  REQUIRE_THROWS_WITH(make_layer("forgetting", small_shape(4, 2)),
                      Catch::Contains("kv_heads must be heads, 4"));
  const auto layer = make_layer("forgetting", small_shape());
  REQUIRE_THROWS_WITH(layer->forward(random({kBatch, kTokens, 20})),
                      Catch::Contains("must be causal"));
  const auto plain = read_kind("forgetting", "");
  REQUIRE_THROWS_AS(make_heads(plain, small_shape(), {.bidirectional = true}), ConfigError);
  REQUIRE_THROWS_WITH(make_heads(plain, small_shape(), {.cross = true}),
                      Catch::Contains("attention: 'forgetting' heads have no cross-attention"));
}

}  // namespace headlab::test_forgetting
