// Mixture of heads: the gates' worked example and identities, reductions to multi-head attention,
// the load-balance loss, defaults and refusals.
#include "tests/catch.h"
#include "tests/layers_testing.h"

namespace headlab::test_moh {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7, H = 6, D = 20;

Layer moh(const std::string& options, int64_t kv_heads = H, int64_t seed = 0) {
  return make_layer("moh", small_shape(H, kv_heads), options, seed);
}

Tensor gates_of(const Layer& layer, const Tensor& x) { return layer->forward(x).gates; }

double balance_of(const Layer& layer, const Tensor& x) {
  layer->train();
  const auto out = layer->forward(x);
  layer->eval();
  REQUIRE(out.aux.size() == 1);
  REQUIRE(out.aux[0].name == "balance");
  REQUIRE(out.aux[0].over == OverLayers::kMean);
  return out.aux[0].value.item<double>();
}

void require_near(const Tensor& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(difference(got.flatten(), at::tensor(want, at::kDouble)) < tolerance);
}

Tensor probability(const Layer& layer, const std::string& router, const Tensor& x) {
  return at::softmax(at::linear(x, parameter(layer, "router." + router + ".weight")), -1);
}

void set_routers(const Layer& layer, double value) {
  at::NoGradGuard no_grad;
  for (auto& p : layer->named_parameters())
    if (p.key().starts_with("router.")) p.value().fill_(value);
}

}  // namespace

TEST_CASE("moh: the worked example of the released module", "[moh]") {
  // Token t is the unit vector t, so that column t of a router holds its logits.
  const auto x = at::eye(D, at::kDouble).narrow(0, 0, 2).unsqueeze(0);  // [1,2,D]
  auto layer_with = [&](const std::string& options) {
    auto layer = moh(", shared: 2, active: 2, balance_weight: 1.0" + options);
    auto fill = [&](const std::string& name, const std::vector<double>& logits) {
      auto weight = at::zeros_like(parameter(layer, name));
      weight.narrow(1, 0, 2).copy_(at::tensor(logits, at::kDouble).view({2, -1}).t());
      set(layer, name, weight);
    };
    fill("router.routed.weight", {1, 0, .5, -1, .3, 0, -.7, 2});
    fill("router.shared.weight", {.2, -.2, 1, 0});
    fill("router.groups.weight", {.5, 0, -1, .2});
    return layer;
  };
  const auto code = layer_with("");
  require_near(gates_of(code, x),
               {1.49063488, .99920244, .94001485, 0, .57014783, 0,  //
                .67688777, .24901309, .47484154, 0, 0, 2.59925760},
               6e-9);
  REQUIRE(balance_of(code, x) == Approx(2.33380028).epsilon(3e-9));
  const auto paper = layer_with(", gates: paper, balance: paper");
  require_near(gates_of(paper, x),
               {.37265872, .24980061, .17895082, 0, .10853916, 0,  //
                .16922194, .06225327, .10135313, 0, 0, .55480168},
               6e-9);
  REQUIRE(balance_of(paper, x) == Approx(.58345007).epsilon(1e-8));
  auto seen = run(code, x).statistics;
  for (int64_t i = 0; i < 4; ++i) {
    REQUIRE(seen["selected"][2 + i] == std::vector<double>{1, 0, .5, .5}[i]);
    REQUIRE(
        seen["probability"][2 + i] ==
        Approx(std::vector<double>{.30293547, .13603533, .16800298, .39302621}[i]).margin(6e-9));
  }
  REQUIRE(seen["balance_code"][0] == Approx(2.33380028).epsilon(3e-9));
  REQUIRE(seen["balance_paper"][0] == Approx(.58345007).epsilon(1e-8));
}

TEST_CASE("moh: normalized gates have the sums of their groups", "[moh]") {
  const auto x = random({B, T, D});
  const auto both = moh(", shared: 2, active: 3");
  const auto a = probability(both, "groups", x);
  const auto g = gates_of(both, x);
  REQUIRE(difference(g.narrow(2, 0, 2).sum(-1), 4 * a.select(2, 0)) < 1e-12);
  REQUIRE(difference(g.narrow(2, 2, 4).sum(-1), 6 * a.select(2, 1)) < 1e-12);
  REQUIRE((g.narrow(2, 2, 4) != 0).sum(-1).eq(3).all().item<bool>());
  const auto full = at::ones({B, T}, at::kDouble);
  REQUIRE(difference(gates_of(moh(", shared: 0, active: 4"), x).sum(-1), 4 * full) < 1e-12);
  REQUIRE(difference(gates_of(moh(", shared: 6, active: 0"), x).sum(-1), 6 * full) < 1e-12);
}

TEST_CASE("moh: normalized gates follow from those of the paper", "[moh]") {
  const auto x = random({B, T, D});
  const auto normalized = moh(", shared: 2, active: 2");
  const auto paper = moh(", shared: 2, active: 2, gates: paper");
  copy_weights(paper, normalized);
  const auto g = gates_of(paper, x), p = probability(paper, "routed", x);
  const auto chosen = p * (g.narrow(2, 2, 4) != 0);
  const auto want = at::cat({g.narrow(2, 0, 2) * 4, g.narrow(2, 2, 4) * 4 / chosen.sum(-1, true)},
                            2);  // 2 hs, 2 K
  REQUIRE(difference(gates_of(normalized, x), want) < 1e-12);
}

TEST_CASE("moh: a single stage is a router of groups that is 0", "[moh]") {
  const auto x = random({B, T, D});
  for (const std::string gates : {"normalized", "paper"}) {
    const auto two = moh(", shared: 3, active: 2, gates: " + gates);
    const auto one = moh(", shared: 3, active: 2, two_stage: false, gates: " + gates);
    copy_weights(one, two);
    set(two, "router.groups.weight", at::zeros({2, D}, at::kDouble));
    REQUIRE(difference(gates_of(one, x), gates_of(two, x)) < 1e-13);
    REQUIRE(one->named_parameters().find("router.groups.weight") == nullptr);
  }
}

TEST_CASE("moh: with routers of 0 and every head active it is multi-head attention", "[moh]") {
  const auto x = random({B, T, D}), cotangent = random({B, T, D});
  const auto mha = make_layer("mha", small_shape(H, 3));
  auto ctx = causal(4);
  const Rotary rotary;
  ctx.rotary = &rotary;
  const auto want = mha->forward(x, ctx).y;
  (want * cotangent).sum().backward();
  for (const std::string options :
       {", shared: 2, active: 4", ", shared: 6, active: 0", ", shared: 0, active: 6",
        ", shared: 1, active: 5, two_stage: false", ", shared: 2, active: 4, router: query_norm",
        ", shared: 2, active: 4, compute: sparse"}) {
    INFO(options);
    const auto layer = moh(options, 3);
    copy_weights(layer, mha);
    set_routers(layer, 0);
    const auto out = layer->forward(x, ctx);
    REQUIRE(difference(out.gates, at::ones_like(out.gates)) < 1e-13);
    REQUIRE(difference(out.y, want) < 1e-12);
    layer->zero_grad();
    (out.y * cotangent).sum().backward();
    for (const char* name : {"q.weight", "k.weight", "v.weight", "o.weight"})
      REQUIRE(difference(parameter(layer, name).grad(), parameter(mha, name).grad()) < 1e-11);
  }
  const auto one = make_layer("moh", small_shape(1, 1));
  REQUIRE(difference(gates_of(one, x), at::ones({B, T, 1}, at::kDouble)) == 0);
}

TEST_CASE("moh: a single active head learns its router from the balance loss alone", "[moh]") {
  const auto x = random({B, T, D});
  for (const std::string gates : {"normalized", "paper"}) {
    const auto layer = moh(", shared: 2, active: 1, gates: " + gates);
    (layer->forward(x).y * random({B, T, D})).sum().backward();
    const double slope = parameter(layer, "router.routed.weight").grad().abs().max().item<double>();
    if (gates == "paper")
      REQUIRE(slope > 1e-3);
    else
      REQUIRE(slope < 1e-13);
  }
}

TEST_CASE("moh: the balance loss knows its bounds and when it is there", "[moh]") {
  const auto x = random({B, T, D});
  REQUIRE(balance_of(moh(", shared: 2, active: 4, balance_weight: 1"), x) == Approx(4));
  const auto all = moh(", shared: 2, active: 4, balance_weight: 1, balance: paper");
  REQUIRE(balance_of(all, x) == Approx(1));
  all->train();
  all->zero_grad();
  all->forward(x).aux[0].value.backward();
  REQUIRE(parameter(all, "router.routed.weight").grad().abs().max().item<double>() < 1e-14);
  for (int64_t seed = 0; seed < 10; ++seed) {
    const auto some = moh(", shared: 1, active: 2, balance_weight: 0.5", H, seed);
    const double code = balance_of(some, x);
    REQUIRE(code > 0);
    REQUIRE(code <= 0.5 * 5);
    const auto paper = moh(", shared: 1, active: 2, balance: paper", H, seed);
    REQUIRE(balance_of(paper, x) * 50 * 5 == Approx(code));  // weights 0.01 and 0.5
  }
  // Every routed head equally often: l = K whatever P is.
  const auto even = moh(", shared: 2, active: 2, balance_weight: 1");
  auto logits = at::zeros({4, D}, at::kDouble);
  for (int64_t t = 0; t < 4; ++t) logits[t][t] = 3, logits[(t + 1) % 4][t] = 1 + 0.3 * t;
  set(even, "router.routed.weight", logits);
  REQUIRE(balance_of(even, at::eye(D, at::kDouble).narrow(0, 0, 4).unsqueeze(0)) == Approx(2));

  REQUIRE(even->forward(x).aux.empty());  // in eval mode
  for (const char* options : {", shared: 6, active: 0", ", balance_weight: 0"}) {
    const auto without = moh(options);
    without->train();
    REQUIRE(without->forward(x).aux.empty());
    REQUIRE(without->aux_names().empty());
  }
}

TEST_CASE("moh: of equal probabilities the lower head is chosen", "[moh]") {
  for (const char* options :
       {", shared: 2, active: 2", ", shared: 2, active: 2, router: query_norm"}) {
    const auto layer = moh(options);
    set_routers(layer, 0);
    set(layer, "q.weight", at::zeros({H * 6, D}, at::kDouble));
    const auto g = gates_of(layer, random({B, 40, D}));
    const auto want = at::tensor({1., 1., 1., 1., 0., 0.}, at::kDouble).expand_as(g);
    REQUIRE(difference(g, want) < 1e-13);
  }
}

TEST_CASE("moh: permuting routed heads permutes their gates and nothing else", "[moh]") {
  const auto x = random({B, T, D});
  const auto layer = moh(", shared: 2, active: 2"), other = moh(", shared: 2, active: 2");
  const auto routed = at::tensor({int64_t{2}, int64_t{0}, int64_t{3}, int64_t{1}});
  const auto heads = at::cat({at::arange(2), routed + 2});
  const auto rows = (heads.unsqueeze(1) * 6 + at::arange(6)).flatten();
  for (const char* name : {"q.weight", "k.weight", "v.weight"})
    set(other, name, parameter(layer, name).index_select(0, rows));
  set(other, "o.weight", parameter(layer, "o.weight").index_select(1, rows));
  set(other, "router.routed.weight",
      parameter(layer, "router.routed.weight").index_select(0, routed));
  const auto before = layer->forward(x), after = other->forward(x);
  REQUIRE(difference(before.y, after.y) < 1e-12);
  REQUIRE(difference(before.gates.index_select(2, heads), after.gates) < 1e-13);
}

TEST_CASE("moh: a token's gates depend on the token alone", "[moh]") {
  const auto x = random({B, T, D});
  auto other = x.clone();
  other.select(1, 3).normal_();
  for (const char* options : {"", ", router: query_norm, active: 2", ", gates: paper"}) {
    const auto layer = moh(options);
    const auto before = gates_of(layer, x), after = gates_of(layer, other);
    for (int64_t t = 0; t < T; ++t)
      REQUIRE((difference(before.select(1, t), after.select(1, t)) < 1e-13) == (t != 3));
    HeadContext cross;
    cross.memory = other;
    REQUIRE(difference(layer->forward(x, cross).gates, before) < 1e-13);
  }
}

TEST_CASE("moh: gates given from outside change neither its own gates nor the loss", "[moh]") {
  const auto x = random({B, T, D});
  const auto layer = moh(", shared: 2, active: 2");
  layer->train();
  HeadContext ctx;
  const auto plain = layer->forward(x, ctx);
  ctx.gates = random({B, H, T});
  const auto gated = layer->forward(x, ctx);
  REQUIRE(difference(plain.y, gated.y) > 1e-3);
  REQUIRE(difference(plain.gates, gated.gates) == 0);
  REQUIRE(difference(plain.aux[0].value, gated.aux[0].value) == 0);
  ctx.gates = ctx.gates.unsqueeze(3).expand({B, H, T, 6});
  REQUIRE(difference(layer->forward(x, ctx).y, gated.y) < 1e-13);
}

TEST_CASE("moh: queries of one norm have no deviation and pass no gradient to the norms", "[moh]") {
  for (const std::string passed : {"all", "selected"}) {
    const auto layer =
        moh(", shared: 2, active: 2, router: query_norm, balance_weight: 1, "
            "straight_through: " +
            passed);
    layer->train();
    // Every head has the queries of the first.
    set(layer, "q.weight", parameter(layer, "q.weight").narrow(0, 0, 6).repeat({H, 1}));
    const auto x = random({B, T, D}).requires_grad_();
    const auto out = layer->forward(x);
    REQUIRE(out.aux[0].value.item<double>() == Approx(2));  // p uniform
    layer->zero_grad();
    out.aux[0].value.backward();
    REQUIRE(x.grad().abs().max().item<double>() == 0);
  }
}

TEST_CASE("moh: straight-through gradients are those of the probabilities", "[moh]") {
  const auto x = random({B, T, D});
  auto gradient = [&](const std::string& passed) {
    const auto layer =
        moh(", shared: 2, active: 2, router: query_norm, balance_weight: 0, "
            "straight_through: " +
            passed);
    const auto out = layer->forward(x);
    REQUIRE(((out.gates == 0) | (out.gates == 1)).all().item<bool>());
    // Without attention's own gradient: of the gates alone.
    if (out.gates.requires_grad()) (out.gates * at::arange(1, H + 1)).sum().backward();
    const auto g = parameter(layer, "q.weight").grad();
    return g.defined() ? g : at::zeros({H * 6, D}, at::kDouble);
  };
  const auto layer = moh(", shared: 2, active: 2, router: query_norm");
  const auto q = at::linear(x, parameter(layer, "q.weight")).view({B, T, H, 6});
  const auto n = q.norm(2, -1).narrow(2, 2, 4);
  const auto p = at::softmax(n / n.std(-1, /*unbiased=*/true, /*keepdim=*/true), -1);
  const auto weights = at::arange(3, H + 1).to(at::kDouble);
  (p * weights).sum().backward({}, /*retain_graph=*/true);
  REQUIRE(difference(gradient("all"), parameter(layer, "q.weight").grad()) < 1e-11);
  layer->zero_grad();
  (p * weights * gates_of(layer, x).detach().narrow(2, 2, 4)).sum().backward();
  REQUIRE(difference(gradient("selected"), parameter(layer, "q.weight").grad()) < 1e-11);
  REQUIRE(gradient("none").abs().max().item<double>() == 0);
}

TEST_CASE("moh: half precision keeps gates in single precision", "[moh]") {
  for (const char* options : {", shared: 2, active: 2", ", shared: 2, active: 2, compute: sparse",
                              ", active: 2, router: query_norm"}) {
    const auto layer = moh(options);
    const auto x = random({B, T, D});
    const auto want = layer->forward(x);
    layer->to(at::kBFloat16);
    const auto out = layer->forward(x.to(at::kBFloat16), causal());
    REQUIRE(out.gates.scalar_type() == at::kFloat);
    REQUIRE(out.y.scalar_type() == at::kBFloat16);
    REQUIRE(out.y.isfinite().all().item<bool>());
    REQUIRE(difference(out.gates.sum(-1).to(at::kDouble), want.gates.sum(-1)) < 0.2);
  }
}

TEST_CASE("moh: its defaults depend on the number of heads", "[moh]") {
  struct Case {
    int64_t heads, shared, active;
  };
  for (const auto& c : std::vector<Case>{
           {1, 1, 0}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {8, 2, 2}, {12, 3, 3}, {16, 4, 4}}) {
    INFO(c.heads << " heads");
    const auto layer = make_layer("moh", small_shape(c.heads, c.heads));
    const auto parameters = layer->named_parameters();
    const auto* shared = parameters.find("router.shared.weight");
    const auto* routed = parameters.find("router.routed.weight");
    REQUIRE((shared ? shared->size(0) : 1) == c.shared);
    REQUIRE((routed ? routed->size(0) : 0) == c.heads - c.shared);
    const auto g = gates_of(layer, random({B, T, D}));
    REQUIRE((g != 0).sum(-1).eq(c.shared + c.active).all().item<bool>());
  }
}

TEST_CASE("moh: routers have the parameters of the paper and start small", "[moh]") {
  auto count = [](const std::string& options) {
    int64_t n = 0;
    const auto layer = fresh("moh", small_shape(H, H), options);
    for (const auto& p : layer->named_parameters())
      if (p.key().starts_with("router.")) n += p.value().numel();
    return n;
  };
  REQUIRE(count(", shared: 2, active: 2") == D * (H + 2));
  REQUIRE(count(", shared: 1, active: 2") == D * (H + 1));
  REQUIRE(count(", shared: 0, active: 2") == D * H);
  REQUIRE(count(", shared: 6, active: 0") == D * H);
  REQUIRE(count(", shared: 2, active: 2, router: query_norm") == 0);
  auto large = small_shape(H, H);
  large.d_model = 2000;
  const auto layer = fresh("moh", large, ", qkv_bias: true, o_bias: true");
  for (const auto& p : layer->named_parameters()) {
    INFO(p.key());
    if (p.key().starts_with("router."))
      REQUIRE(p.value().std().item<double>() == Approx(0.02).epsilon(0.05));
    if (p.key().ends_with(".bias")) REQUIRE(p.value().abs().max().item<double>() == 0);
  }
}

TEST_CASE("moh: what cannot be is refused with its place and a remedy", "[moh]") {
  auto refused = [](const std::string& options, int64_t heads, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_AS(fresh("moh", small_shape(heads, heads), options), ConfigError);
    REQUIRE_THROWS_WITH(fresh("moh", small_shape(heads, heads), options), Catch::Contains(message));
  };
  refused(", shared: 2, active: 5", 6,
          "attention.active: 5 active of 4 routed heads (6 heads, 2 shared); choose at most 4");
  refused(", shared: 7", 6, "attention.shared: 7 shared heads of 6; choose at most 6");
  refused(", shared: 2, active: 0", 6,
          "attention.active: no token would use the 4 routed heads; choose at least 1");
  refused(", router: query_norm, shared: 5", 6, "attention.router: query_norm ranks 2 routed");
  refused(", router: query_norm", 2, "choose fewer shared or router: learned");
  refused(", router: query_norm, shared: 6", 6, "attention.router");
  refused(", router: query_norm, gates: paper", 6, "attention.gates: query_norm has binary gates");
  refused(", router: query_norm, two_stage: false", 6, "attention.two_stage");
  refused(", straight_through: all", 6, "attention.straight_through: learned gates");
  refused(", router: query_norm, active: 2, straight_through: all, compute: sparse", 6,
          "attention.compute: sparse skips outputs");
  refused(", balance_weight: -1", 6, "attention.balance_weight");
  refused(", shared: -1", 6, "attention.shared");
  refused(", router: best", 6, "attention.router");
}

TEST_CASE("moh: floating-point operations are those of the active heads", "[moh]") {
  const double t = 32, s = 32, pairs = t * s / 2;
  auto flops = [&](const std::string& options) { return moh(options)->flops(32, 32, pairs); };
  const double width = H * 6, rho = 4. / H;
  const double kv = 4 * s * D * width, core = 4 * pairs * width, side = 2 * t * D * width;
  const double routers = 2 * t * D * (H + 2);
  REQUIRE(flops(", shared: 2, active: 2") ==
          Approx(2 * side * rho + kv + core * rho + routers).epsilon(1e-12));
  REQUIRE(flops(", shared: 2, active: 2, compute: dense") ==
          Approx(2 * side + kv + core + routers).epsilon(1e-12));
  REQUIRE(flops(", shared: 2, active: 2, router: query_norm") ==
          Approx(side + side * rho + kv + core * rho).epsilon(1e-12));
  const auto none = moh("");
  none->mask_heads({0, 1, 2, 3, 4, 5});
  REQUIRE(none->slice()->flops(32, 32, pairs) == 0);
}

}  // namespace headlab::test_moh
