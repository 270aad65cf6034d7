// Heads with experts: the formula written out, reductions, what is not computed, statistics.
#include <fmt/format.h>

#include "tests/layers_testing.h"

namespace headlab::test_switchhead {
using namespace testing;

namespace {

constexpr int64_t H = 4, D = 20, d = 6;

Layer switchhead(const std::string& options = "") {
  return make_layer("switchhead", small_shape(), options);
}

Tensor input() { return random({kBatch, kTokens, D}); }

// Sigmoids of a router: [B,T,H,E].
Tensor scores_of(const Layer& layer, const char* router, const Tensor& x) {
  const auto logits = at::linear(x, parameter(layer, router));
  return logits.sigmoid().unflatten(2, {H, logits.size(2) / H});
}

// Scores of the K best, 0 elsewhere, token by token and head by head.
Tensor kept_of(const Tensor& scores, int64_t K) {
  const auto threshold = std::get<0>(scores.sort(-1)).narrow(-1, scores.size(3) - K, 1);
  return scores * (scores >= threshold);
}

// [H,E,d,D] of v.weight, [H,E,D,d] of o.weight.
Tensor value_experts(const Layer& layer) {
  return parameter(layer, "v.weight").detach().view({H, -1, d, D});
}
Tensor output_experts(const Layer& layer) {
  return parameter(layer, "o.weight").detach().view({D, H, -1, d}).permute({1, 2, 0, 3});
}

Tensor mean_of(const Tensor& of_tokens) { return of_tokens.mean(at::IntArrayRef({0, 1})); }

// What each head adds to y, all experts computed: [B,T,H,D]. And what attention gives it.
struct ByHand {
  Tensor values, heads, added;  // [B,H,S,d], [B,H,T,d], [B,T,H,D]

  ByHand(const Layer& layer, const Tensor& x, int64_t K) {
    const auto s = kept_of(scores_of(layer, "router.v.weight", x), K);
    const auto r = kept_of(scores_of(layer, "router.o.weight", x), K);
    values = at::einsum("bshe,hedf,bsf->bhsd", {s, value_experts(layer), x});
    const auto q = split_heads(at::linear(x, parameter(layer, "q.weight")), H);
    const auto k = split_heads(at::linear(x, parameter(layer, "k.weight")), H);
    const auto z = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(d));
    heads = at::matmul(
        masked_softmax(z, allowed_keys(causal().mask, x.size(1), x.size(1), at::kCPU)), values);
    added = at::einsum("bthe,hefd,bhtd->bthf", {r, output_experts(layer), heads});
  }
};

// An mha with the same queries and keys.
Layer plain(const Layer& from, const Tensor& values, const Tensor& outputs) {
  const auto mha = make_layer("mha", small_shape());
  copy_weights(mha, from);
  set(mha, "v.weight", values.reshape({H * d, D}));                      // [H,d,D]
  set(mha, "o.weight", outputs.permute({1, 0, 2}).reshape({D, H * d}));  // [H,D,d]
  return mha;
}

void set_routers(const Layer& layer, double value) {
  for (const char* router : {"router.v.weight", "router.o.weight"})
    set(layer, router, at::full_like(parameter(layer, router), value));
}

}  // namespace

TEST_CASE("keys choose experts of values, and queries experts of outputs", "[switchhead]") {
  // One product with all experts; one for each; chosen by sorting.
  for (const auto& [E, K] : std::vector<std::pair<int64_t, int64_t>>{
           {4, 1}, {4, 2}, {4, 3}, {9, 2}, {13, 3}, {20, 2}, {20, 5}}) {
    INFO(K << " of " << E << " experts");
    const auto layer =
        switchhead(", experts: " + std::to_string(E) + ", active: " + std::to_string(K));
    const auto x = input();
    const auto want = ByHand(layer, x, K).added.sum(2);
    REQUIRE(relative_difference(layer->forward(x, causal()).y, want) < 1e-12);
    require_gradients(*layer);
  }
  // Two of four are what nobody asks for.
  const auto layer = switchhead(", experts: 4, active: 2"), as_default = switchhead();
  const auto x = input();
  REQUIRE(difference(layer->forward(x).y, as_default->forward(x).y) == 0);
}

TEST_CASE("experts permuted with their router rows change nothing", "[switchhead]") {
  const auto layer = switchhead(), permuted = switchhead();
  const auto order = at::tensor({2, 0, 3, 1}, at::kLong);
  for (const char* name : {"v.weight", "router.v.weight", "router.o.weight"}) {
    const auto rows = parameter(layer, name).detach().view({H, 4, -1, D});
    set(permuted, name, rows.index_select(1, order).view(parameter(layer, name).sizes()));
  }
  const auto columns = parameter(layer, "o.weight").detach().view({D, H, 4, d});
  set(permuted, "o.weight", columns.index_select(2, order).view({D, H * 4 * d}));
  const auto x = input();
  REQUIRE(relative_difference(permuted->forward(x, causal()).y, layer->forward(x, causal()).y) <
          1e-12);
}

TEST_CASE("one expert is multi-head attention with a gate of each head", "[switchhead]") {
  const auto layer = switchhead(", experts: 1");
  REQUIRE(layer->named_parameters().find("router.v.weight") == nullptr);
  const auto mha = make_layer("mha", small_shape());
  copy_weights(mha, layer);
  const auto x = input();
  auto gated = causal();
  gated.gates = scores_of(layer, "router.o.weight", x).squeeze(3).transpose(1, 2);
  REQUIRE(difference(layer->forward(x, causal()).y, mha->forward(x, gated).y) < 1e-12);
  auto of_layer = statistics_of(*layer, x, causal());
  for (const auto& [name, values] : statistics_of(*mha, x, gated))
    for (size_t n = 0; n < values.size(); ++n) {
      INFO(name << " " << n);
      if (std::isfinite(values[n])) CHECK(of_layer.at(name)[n] == Approx(values[n]));
    }
  CHECK_FALSE(of_layer.contains("expert_entropy"));
}

TEST_CASE("equal experts that all are used and not told apart are (E/2)^2 of one", "[switchhead]") {
  for (int64_t E : {2, 3}) {
    const auto layer = switchhead(fmt::format(", experts: {0}, active: {0}", E));
    set_routers(layer, 0);
    const auto v = value_experts(layer).select(1, 0), o = output_experts(layer).select(1, 0);
    const auto mha = plain(layer, v, o);
    set(layer, "v.weight", v.unsqueeze(1).expand({H, E, d, D}).reshape({H * E * d, D}));
    set(layer, "o.weight",
        o.permute({1, 0, 2}).unsqueeze(2).expand({D, H, E, d}).reshape({D, H * E * d}));
    const auto x = input();
    const auto want = mha->forward(x, causal()).y * (static_cast<double>(E * E) / 4);
    REQUIRE(relative_difference(layer->forward(x, causal()).y, want) < 1e-12);
  }
}

TEST_CASE("of experts with equal scores the lower are chosen", "[switchhead]") {
  const auto layer = switchhead(", experts: 5, active: 2");
  set_routers(layer, 0);
  const auto v = value_experts(layer).narrow(1, 0, 2).sum(1);
  const auto o = output_experts(layer).narrow(1, 0, 2).sum(1);
  const auto x = input();
  const auto want = plain(layer, v, o)->forward(x, causal()).y / 4;
  REQUIRE(relative_difference(layer->forward(x, causal()).y, want) < 1e-12);
}

TEST_CASE("of many experts those that no token chooses are not computed and get no gradient",
          "[switchhead]") {
  constexpr int64_t E = 9;
  const auto layer = switchhead(", experts: 9, active: 2");
  const auto x = input();
  const auto clean = layer->forward(x, causal()).y;
  const auto used = [&](const char* router, const Tensor& of) {  // bool [H,E]
    return (kept_of(scores_of(layer, router, of), 2) > 0).any(0).any(0);
  };
  const auto one = x.narrow(0, 0, 1).narrow(1, 0, 1);
  const auto of_values = used("router.v.weight", one), of_outputs = used("router.o.weight", one);
  REQUIRE(of_values.sum().item<int64_t>() == 2 * H);
  // What is not a number would spread from whatever is computed, times 0 too.
  {
    at::NoGradGuard no_grad;
    parameter(layer, "v.weight")
        .view({H, E, d, D})
        .masked_fill_(of_values.logical_not().view({H, E, 1, 1}), NAN);
    parameter(layer, "o.weight")
        .view({D, H, E, d})
        .masked_fill_(of_outputs.logical_not().view({1, H, E, 1}), NAN);
  }
  const auto y = layer->forward(one, causal()).y;
  REQUIRE(relative_difference(y, clean.narrow(0, 0, 1).narrow(1, 0, 1)) < 1e-12);
  REQUIRE(layer->forward(x, causal()).y.isnan().any().item<bool>());

  y.sum().backward();
  const auto gradient = parameter(layer, "v.weight").grad().view({H, E, -1}).abs().amax(-1);
  REQUIRE(at::equal(gradient > 0, of_values));
  const auto columns = parameter(layer, "o.weight").grad().view({D, H, E, d}).abs();
  REQUIRE(at::equal(columns.amax(at::IntArrayRef({0, 3})) > 0, of_outputs));
  for (const auto& [router, chosen] :
       {std::pair{"router.v.weight", of_values}, std::pair{"router.o.weight", of_outputs}}) {
    const auto rows = parameter(layer, router).grad().view({H, E, D}).abs().amax(-1);
    REQUIRE(at::equal(rows > 0, chosen));
  }
}

TEST_CASE("dropped experts are out of the choice alone, in training alone", "[switchhead]") {
  const auto x = input();
  const auto at_step = [&](const Layer& layer, uint64_t step) {
    auto ctx = causal();
    ctx.rng = {.seed = 3, .step = step};
    return layer->forward(x, ctx).y;
  };
  const auto some = switchhead(", expert_dropout: 0.5");
  const auto without = switchhead();
  REQUIRE(difference(at_step(some, 1), at_step(without, 1)) == 0);
  some->train();
  REQUIRE(difference(at_step(some, 1), at_step(some, 1)) == 0);
  REQUIRE(difference(at_step(some, 1), at_step(some, 2)) > 1e-3);
  // K are used whatever is dropped, so that all are where all are wanted, with their own scores.
  const auto all = switchhead(", active: 4, expert_dropout: 0.9");
  const auto whole = at_step(all, 1);
  all->train();
  REQUIRE(relative_difference(at_step(all, 1), whole) < 1e-12);
  // Of one that is nearly always dropped the choice falls on others.
  const auto most = switchhead(", experts: 3, active: 1, expert_dropout: 0.4");
  set_routers(most, 0);
  REQUIRE(statistics_of(*most, x, causal()).at("value_selected")[0] == 1);
  most->train();
  const auto selected = statistics_of(*most, x, causal()).at("value_selected");
  for (int64_t h = 0; h < H; ++h) {
    CHECK(selected[3 * h] + selected[3 * h + 1] + selected[3 * h + 2] == Approx(1));
    CHECK(selected[3 * h] < 1);
  }
}

TEST_CASE("scores and choices are logged of each expert, over the tokens that count",
          "[switchhead]") {
  const auto layer = switchhead();
  const auto x = input();
  auto ctx = causal();
  const int64_t kept = 5;  // of the second example
  ctx.mask.key_length = ctx.mask.query_length = at::tensor({kTokens, kept});
  const auto counted = [&](const Tensor& of_tokens) {  // [B,T,H,E] -> [H,E]
    return at::cat({of_tokens[0], of_tokens[1].narrow(0, 0, kept)}).mean(0);
  };
  const auto got = statistics_of(*layer, x, ctx);
  auto entropy = at::zeros({H}, at::kDouble);
  for (const std::string side : {"value", "output"}) {
    const auto scores =
        scores_of(layer, side == "value" ? "router.v.weight" : "router.o.weight", x);
    const auto probability = counted(scores);
    const auto selected = counted((kept_of(scores, 2) > 0).to(at::kDouble));
    REQUIRE(selected.sum().item<double>() == Approx(2 * H));
    const auto f = selected / 2;
    entropy = entropy - at::xlogy(f, f).sum(1) / std::log(4) / 2;
    for (int64_t n = 0; n < 4 * H; ++n) {
      CHECK(got.at(side + "_probability")[n] == Approx(probability.view(-1)[n].item<double>()));
      CHECK(got.at(side + "_selected")[n] == Approx(selected.view(-1)[n].item<double>()));
    }
  }
  for (int64_t h = 0; h < H; ++h)
    CHECK(got.at("expert_entropy")[h] == Approx(entropy[h].item<double>()));

  layer->mask_heads({1});
  const auto sliced = statistics_of(*layer->slice(), x, ctx);
  for (int64_t n = 0; n < 4 * H; ++n) {
    if (n / 4 == 1)
      CHECK(std::isnan(sliced.at("output_selected")[n]));
    else
      CHECK(sliced.at("output_selected")[n] == got.at("output_selected")[n]);
  }
  CHECK(std::isnan(sliced.at("expert_entropy")[1]));
  CHECK(sliced.at("expert_entropy")[3] == Approx(got.at("expert_entropy")[3]));
}

TEST_CASE("norms are those of what attention gives a head, and of values behind its mean outputs",
          "[switchhead]") {
  const auto layer = switchhead();
  const auto x = input();
  const ByHand hand(layer, x, 2);
  const auto got = statistics_of(*layer, x, causal());
  const auto norms = mean_of(hand.heads.norm(2, -1).transpose(1, 2));  // [H]
  const auto r = mean_of(kept_of(scores_of(layer, "router.o.weight", x), 2));
  const auto matrix = at::einsum("he,hefd->hfd", {r, output_experts(layer)});
  const auto of_value = at::einsum("hfd,bhsd->bhsf", {matrix, hand.values}).norm(2, -1);
  const auto a = map_of(*layer, x, causal());
  const auto weighted = at::matmul(a, of_value.unsqueeze(3)).squeeze(3).transpose(1, 2);  // [B,T,H]
  const auto mean = mean_of(weighted);
  for (int64_t h = 0; h < H; ++h) {
    CHECK(got.at("output_norm")[h] == Approx(norms[h].item<double>()));
    CHECK(got.at("value_weighted_norm")[h] == Approx(mean[h].item<double>()));
  }
  // What is told of a head is what meets the output projection.
  HeadProbe probe;
  probe.head_outputs = true;
  auto ctx = causal();
  ctx.observer = &probe;
  layer->forward(x, ctx);
  const auto& said = probe.layer_outputs().at(1);
  const auto of_heads = said.weight.view({D, H, -1});
  REQUIRE(difference(at::einsum("fhe,bhte->bthf", {of_heads, said.edited}), hand.added) < 1e-10);
}

TEST_CASE("gates of features, and an offset, meet what experts say", "[switchhead]") {
  const auto layer = switchhead();
  REQUIRE(layer->value_width() == 4 * d);
  const auto x = input();
  auto ctx = causal();
  ctx.gates = random({kBatch, H, kTokens});
  const auto by_head = layer->forward(x, ctx).y;
  ctx.gates = ctx.gates.unsqueeze(3).expand({kBatch, H, kTokens, 4 * d});
  REQUIRE(relative_difference(layer->forward(x, ctx).y, by_head) < 1e-12);
  ctx.offset = random({kBatch, H, kTokens, 4 * d});
  const auto added =
      at::linear(ctx.offset.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
  REQUIRE(relative_difference(layer->forward(x, ctx).y, by_head + added) < 1e-12);
}

TEST_CASE("decoding chooses experts of values for new tokens only", "[switchhead]") {
  at::NoGradGuard no_grad;
  const auto layer = switchhead();
  const auto x = input();
  const auto whole = layer->forward(x, causal()).y;
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  layer->forward(x.narrow(1, 0, 5), ctx);
  HeadProbe probe;
  probe.statistics = true;
  ctx.observer = &probe;
  const auto y = layer->forward(x.narrow(1, 5, 2), ctx).y;
  REQUIRE(relative_difference(y, whole.narrow(1, 5, 2)) < 1e-12);
  auto sums = probe.sums().at(1);
  REQUIRE(sums.find_own("value_selected")->counts == std::vector<double>(4 * H, 2 * kBatch));
  // Keys and mixed values are all that is kept.
  REQUIRE(cache.append("v", at::zeros({kBatch, H, 1, d}, at::kDouble)).sizes() ==
          at::IntArrayRef({kBatch, H, kTokens + 1, d}));
}

TEST_CASE("switchhead starts as the authors' code does and counts what the paper counts",
          "[switchhead]") {
  HeadShape shape;
  shape.d_model = 256, shape.heads = shape.kv_heads = 4, shape.head_dim = 40;
  shape.layers = 9, shape.context = 64;
  const auto layer = fresh("switchhead", shape, "");
  int64_t parameters = 0;
  for (const auto& p : layer->named_parameters()) {
    INFO(p.key());
    parameters += p.value().numel();
    const double fan_in = p.key() == "o.weight" ? 4 * 40 : 256;
    CHECK(p.value().std().item<double>() == Approx(1 / std::sqrt(9 * fan_in)).epsilon(0.05));
  }
  CHECK(parameters == 2 * 256 * 160 * (1 + 4) + 2 * 256 * 4 * 4);
  const double plain = 256 * 160, T = 10;
  CHECK(layer->flops(10, 10, 55) == 4 * T * plain + 4 * 2 * T * plain + 4 * T * 256 * 16 +  //
                                        4 * 55 * 160);
}

TEST_CASE("matrices of a head are means of its experts", "[switchhead]") {
  const auto layer = switchhead();
  const auto m = *layer->matrices();
  const auto want = at::matmul(output_experts(layer).mean(1), value_experts(layer).mean(1));
  REQUIRE(difference(at::matmul(m.o, m.v), want) < 1e-12);
}

TEST_CASE("switchhead refuses what it cannot choose", "[switchhead]") {
  REQUIRE_THROWS_WITH(switchhead(", experts: 2, active: 3"),
                      Catch::Contains("attention.active: 3 active of 2 experts"));
  REQUIRE_THROWS_WITH(switchhead(", experts: 0"), Catch::Contains("attention.experts"));
  REQUIRE_THROWS_WITH(switchhead(", active: 0"), Catch::Contains("attention.active"));
  REQUIRE_THROWS_WITH(switchhead(", expert_dropout: 1"),
                      Catch::Contains("attention.expert_dropout"));
  REQUIRE_THROWS_WITH(switchhead(", bias: true"), Catch::Contains("bias"));
  REQUIRE_THROWS_WITH(make_layer("switchhead", small_shape(4, 2)),
                      Catch::Contains("kv_heads must be heads, 4"));
}

}  // namespace headlab::test_switchhead
