// Learned gates around other kinds: the gate's own law, and that nothing else changes.
#include <fmt/format.h>

#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_gated {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7;

Tensor parameter(const AttentionHeads& layer, const std::string& name) {
  return layer.named_parameters()[name];
}

void set(const AttentionHeads& layer, const std::string& name, const Tensor& value) {
  at::NoGradGuard no_grad;
  parameter(layer, name).copy_(value);
}

// The kind that a gated layer holds, with the same weights.
std::shared_ptr<AttentionHeads> inner_of(const AttentionHeads& gated, const std::string& kind,
                                         const HeadShape& shape, const std::string& options = "") {
  auto inner = make_layer(kind, shape, options);
  for (const auto& p : inner->named_parameters())
    set(*inner, p.key(), parameter(gated, "inner." + p.key()));
  return inner;
}

// Gates of the heads with these log_alphas, as evaluation or a training step with noise u has
// them.
Tensor gates(AttentionHeads& layer, const std::vector<double>& log_alpha, const Tensor& u = {}) {
  set(layer, "gate.log_alpha", at::tensor(log_alpha, at::kDouble));
  HeadContext ctx;
  ctx.noise = u;
  return layer.forward(random({1, 1, 20}), ctx).gates[0][0];
}

}  // namespace

TEST_CASE("open gates leave the inner kind as it is", "[gated]") {
  for (const std::string options : {"", ", inner: {kind: mha, bias: true}"}) {
    const auto gated = make_layer("gated", small_shape(), options);
    set(*gated, "gate.log_alpha", at::full({4}, 5, at::kDouble));
    const auto inner =
        inner_of(*gated, "mha", small_shape(), options.empty() ? "" : ", bias: true");
    const auto x = random({B, T, 20});
    REQUIRE(difference(gated->forward(x, causal()).y, inner->forward(x, causal()).y) < 1e-12);
  }
}

TEST_CASE("sigmoid gates are output gates of the inner kind", "[gated]") {
  for (const std::string granularity : {"head", "element"}) {
    const auto gated =
        make_layer("gated", small_shape(4, 2), ", gate: sigmoid, granularity: " + granularity);
    const auto inner = inner_of(*gated, "mha", small_shape(4, 2));
    const auto x = random({B, T, 20});
    auto g = at::sigmoid(
        at::linear(x, parameter(*gated, "gate.weight"), parameter(*gated, "gate.bias")));
    const auto given = random({B, 4, T});
    auto ctx = causal();
    ctx.gates = given;
    const auto out = gated->forward(x, ctx);
    if (granularity == "head") {
      REQUIRE(difference(out.gates, g) < 1e-12);
      ctx.gates = given * g.transpose(1, 2);
    } else {
      REQUIRE_FALSE(out.gates.defined());
      ctx.gates = given.unsqueeze(3) * g.view({B, T, 4, 6}).transpose(1, 2);
    }
    REQUIRE(difference(out.y, inner->forward(x, ctx).y) < 1e-12);
  }
}

TEST_CASE("sigmoid gates tell how many of them are nearly shut", "[gated]") {
  const auto x = random({B, T, 20});
  for (const char* granularity : {"head", "element"}) {
    const auto layer = make_layer("gated", small_shape(),
                                  std::string(", gate: sigmoid, granularity: ") + granularity);
    HeadProbe probe;
    probe.statistics = true;
    HeadContext ctx;
    ctx.observer = &probe;
    ctx.mask.query_length = ctx.mask.key_length = at::tensor({T, int64_t{3}});
    layer->forward(x, ctx);
    const auto g = at::sigmoid(
        at::linear(x, parameter(*layer, "gate.weight"), parameter(*layer, "gate.bias")));
    const auto of_heads = at::cat({g[0], g[1].narrow(0, 0, 3)}).view({T + 3, 4, -1});
    for (int64_t h = 0; h < 4; ++h) {
      const auto of_head = of_heads.select(1, h);
      INFO(granularity << " " << h);
      REQUIRE(probe.values(1).at("gate")[h] == Approx(of_head.mean().item<double>()));
      REQUIRE(probe.values(1).at("gate_low")[h] ==
              Approx((of_head < 0.1).to(at::kDouble).mean().item<double>()));
    }
  }
  for (const auto& own : make_layer("gated", small_shape())->own_statistics())
    REQUIRE(std::string(own.name) != "gate_low");
}

TEST_CASE("a zero gate weight scales all of a head by the sigmoid of its bias", "[gated]") {
  const auto gated = make_layer("gated", small_shape(), ", gate: sigmoid");
  const auto inner = inner_of(*gated, "mha", small_shape());
  set(*gated, "gate.weight", at::zeros({4, 20}, at::kDouble));
  set(*gated, "gate.bias", at::full({4}, 0.7, at::kDouble));
  const auto x = random({B, T, 20});
  const double scale = 1 / (1 + std::exp(-0.7));
  REQUIRE(difference(gated->forward(x).y, scale * inner->forward(x).y) < 1e-12);
}

TEST_CASE("hard-concrete gates have their published values", "[gated]") {
  // p(g=0), p(g=1), test gate at temperature 0.33.
  struct Row {
    double log_alpha, shut, open, test;
  };
  constexpr int64_t H = 1000;
  const auto layer = make_layer("gated", small_shape(H, H));
  const auto coin = make_layer("gated", small_shape(H, H), ", test_gate: argmax");
  for (const Row& row : std::vector<Row>{{-3, .901, .022, 0},
                                         {-2.398, .833, .040, 0},
                                         {0, .312, .312, .5},
                                         {2.5, .036, .847, 1},
                                         {4.605, .0045, .978, 1}}) {
    INFO("log_alpha " << row.log_alpha);
    const std::vector<double> same(H, row.log_alpha);
    REQUIRE(gates(*layer, same)[0].item<double>() == Approx(row.test).margin(1e-3));
    if (row.log_alpha != 0) {
      const double likelier = row.open > row.shut ? 1 : 0;
      REQUIRE(gates(*coin, same)[0].item<double>() == likelier);
    }
    // The share of a fine grid of noise at which the gate is exactly 0 and exactly 1.
    layer->train();
    int64_t shut = 0, open = 0, n = 4000;
    for (int64_t i = 0; i < n; i += H) {
      const auto u = (at::arange(i, i + H).to(at::kDouble) + 0.5) / static_cast<double>(n);
      const auto g = gates(*layer, same, u);
      shut += (g == 0).sum().item<int64_t>();
      open += (g == 1).sum().item<int64_t>();
    }
    layer->eval();
    REQUIRE(static_cast<double>(shut) / n == Approx(row.shut).margin(1e-3));
    REQUIRE(static_cast<double>(open) / n == Approx(row.open).margin(1e-3));
    // What is penalised is the probability of not being shut.
    const auto out = layer->forward(random({1, 2, 20}));
    REQUIRE(out.aux.at(0).value.item<double>() == Approx(H * (1 - row.shut)).margin(0.75e-3 * H));
  }
}

TEST_CASE("gate noise is a function of the counter, one draw a head", "[gated]") {
  const auto layer = make_layer("gated", small_shape());
  layer->train();
  const auto x = random({B, T, 20});
  auto at_step = [&](AttentionHeads& heads, uint64_t step) {
    auto ctx = causal();
    ctx.rng = {.seed = 3, .step = step};
    return heads.forward(x, ctx);
  };
  const auto one = at_step(*layer, 1), again = at_step(*layer, 1), two = at_step(*layer, 2);
  REQUIRE(difference(one.y, again.y) == 0);
  REQUIRE(difference(one.gates, two.gates) > 1e-6);
  REQUIRE(difference(one.gates, one.gates[0][0].expand_as(one.gates)) == 0);
  // Heads keep their draws when others are sliced away.
  layer->mask_heads({1});
  const auto sliced = layer->slice();
  REQUIRE(difference(at_step(*sliced, 1).gates, at_step(*layer, 1).gates) < 1e-12);
}

TEST_CASE("a shut gate gets its gradient from the penalty alone", "[gated]") {
  const auto layer = make_layer("gated", small_shape(), ", penalty: 0.5");
  set(*layer, "gate.log_alpha", at::tensor({-4., 0., 1., 4.}, at::kDouble));
  auto out = layer->forward(random({B, T, 20}));
  out.y.sum().backward();
  const auto task = parameter(*layer, "gate.log_alpha").grad().clone();
  REQUIRE(task[0].item<double>() == 0);
  REQUIRE(task[3].item<double>() == 0);
  REQUIRE(task[1].abs().item<double>() > 0);
  layer->zero_grad();
  out = layer->forward(random({B, T, 20}));
  out.aux[0].value.backward();
  REQUIRE((parameter(*layer, "gate.log_alpha").grad() > 0).all().item<bool>());
}

TEST_CASE("log_alpha is a group of its own and stays within the clamp", "[gated]") {
  const auto layer = make_layer("gated", small_shape());
  ParameterGroups groups;
  layer->parameter_groups(groups);
  REQUIRE(groups.gates.size() == 1);
  set(*layer, "gate.log_alpha", at::tensor({-9., -1., 1., 9.}, at::kDouble));
  layer->after_step();
  REQUIRE(difference(parameter(*layer, "gate.log_alpha"),
                     at::tensor({-4.605, -1., 1., 4.605}, at::kDouble)) < 1e-12);
  ParameterGroups none;
  make_layer("gated", small_shape(), ", gate: sigmoid")->parameter_groups(none);
  REQUIRE(none.gates.empty());
}

TEST_CASE("gates sit on every other kind, sliced or masked", "[gated]") {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      for (const std::string gate : {"hard_concrete", "sigmoid, granularity: element"}) {
        const auto layer = make_layer("gated", small_shape(),
                                      fmt::format(", gate: {}, inner: {{kind: {}}}", gate, kind));
        const auto ctx = layer->traits().causal ? causal() : HeadContext{};
        const auto x = random({B, T, 20});
        layer->mask_heads({0, 2});
        const auto sliced = layer->slice();
        REQUIRE(difference(sliced->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
        layer->mask_heads({0, 2, 3});
        sliced->mask_heads({3});
        REQUIRE(difference(sliced->slice()->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
        if (!layer->traits().decodes) continue;
        layer->mask_heads({});
        LayerCache cache;
        auto step = ctx;
        step.cache = &cache;
        const auto whole = layer->forward(x, ctx).y;
        REQUIRE(difference(layer->forward(x.narrow(1, 0, 4), step).y, whole.narrow(1, 0, 4)) <
                1e-12);
        REQUIRE(difference(layer->forward(x.narrow(1, 4, 3), step).y, whole.narrow(1, 4, 3)) <
                1e-12);
      }
    }
}

TEST_CASE("wrong gates are told with their place", "[gated]") {
  auto wrong = [](const std::string& options, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_WITH(make_layer("gated", small_shape(), options), Catch::Contains(message));
  };
  wrong(", gamma: 0.1", "test:1:22: attention.gamma: must be below 0");
  wrong(", zeta: 1", "attention.zeta: must be above 1");
  wrong(", granularity: element", "attention.granularity: 'element' needs gate: sigmoid");
  wrong(", inner: {kind: mah}", "attention.inner.kind");
  wrong(", inner: {kind: mha, scal: 1}",
        "attention.inner.scal: unknown key; did you mean 'scale'?");
}

}  // namespace headlab::test_gated
