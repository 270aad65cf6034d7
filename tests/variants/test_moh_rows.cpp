// Mixture of heads: skipped query rows against dense attention, slicing, decoding, and statistics
// over the rows that heads serve.
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "experiments/analysis/maps/patterns.h"
#include "tests/catch.h"
#include "tests/layers_testing.h"

namespace headlab::test_moh_rows {
using namespace testing;

namespace {

constexpr int64_t B = 2, H = 6, D = 20;

// One layer computed densely and one that skips rows, with the same weights.
struct Pair {
  Layer dense, sparse;

  explicit Pair(const std::string& options, int64_t kv_heads = H) {
    const auto shape = small_shape(H, kv_heads);
    dense = make_layer("moh", shape, ", compute: dense" + options);
    sparse = make_layer("moh", shape, ", compute: sparse" + options);
    copy_weights(sparse, dense);
  }
  // Feature 0 of every token is 1: this logit decides which routed heads serve all or no tokens.
  void prefer(const std::vector<double>& logits) {
    auto weight = parameter(dense, "router.routed.weight").detach().clone();
    weight.select(1, 0).copy_(at::tensor(logits, at::kDouble));
    set(dense, "router.routed.weight", weight);
    copy_weights(sparse, dense);
  }
};

Tensor tokens(int64_t T) {
  auto x = random({B, T, D});
  x.select(2, 0).fill_(1);
  return x;
}

void require_same(const Pair& pair, const Tensor& x, const HeadContext& given) {
  const auto cotangent = random(x.sizes());
  std::vector<Tensor> y, gradients[2];
  for (int n = 0; n < 2; ++n) {
    const auto& layer = n ? pair.sparse : pair.dense;
    layer->train();
    auto ctx = given;
    std::vector<Tensor> inputs{x.clone().requires_grad_()};
    if (given.memory.defined())
      inputs.push_back(ctx.memory = given.memory.clone().requires_grad_());
    if (given.bias.defined()) inputs.push_back(ctx.bias = given.bias.clone().requires_grad_());
    if (given.gates.defined()) inputs.push_back(ctx.gates = given.gates.clone().requires_grad_());
    const auto out = layer->forward(inputs[0], ctx);
    layer->zero_grad();
    auto loss = (out.y * cotangent).sum();
    for (const auto& aux : out.aux) loss = loss + aux.value;
    loss.backward();
    y.push_back(out.y);
    for (const auto& input : inputs) gradients[n].push_back(input.grad());
    for (const auto& p : layer->parameters()) gradients[n].push_back(p.grad());
  }
  REQUIRE(difference(y[0], y[1]) < 1e-12);
  REQUIRE(gradients[0].size() == gradients[1].size());
  for (size_t n = 0; n < gradients[0].size(); ++n) {
    INFO("gradient " << n);
    REQUIRE(gradients[0][n].defined() == gradients[1][n].defined());
    if (gradients[0][n].defined())
      REQUIRE(difference(gradients[0][n], gradients[1][n]) <
              1e-11 * (1 + gradients[0][n].abs().max().item<double>()));
  }
}

const std::vector<std::string> kOptions{
    ", shared: 2, active: 2, qkv_bias: true, o_bias: true",
    ", shared: 0, active: 1",
    ", shared: 1, active: 5, gates: paper",
    ", shared: 2, active: 2, two_stage: false",
    ", shared: 2, active: 2, router: query_norm",
    ", shared: 1, active: 3, router: query_norm, straight_through: selected",
};

}  // namespace

TEST_CASE("moh: skipping rows changes neither outputs nor gradients", "[moh]") {
  const Rotary rotary;
  const Alibi alibi(H, at::kDouble);
  int64_t kv_heads = 2;
  for (const auto& options : kOptions) {
    kv_heads = 8 - kv_heads;
    INFO(options << ", " << kv_heads << " kv heads");
    const Pair pair(options, kv_heads);
    const int64_t T = 9;
    const auto x = tokens(T);
    for (auto backend : {Backend::kAuto, Backend::kEager}) {
      auto ctx = HeadContext{};
      ctx.backend = backend;
      require_same(pair, x, ctx);
      ctx.rotary = &rotary;
      ctx.mask.causal = true;
      require_same(pair, x, ctx);
      ctx.mask.window = 3;
      ctx.gates = random({B, H, T});
      require_same(pair, x, ctx);
      ctx.mask.causal = false;
      ctx.positions = at::arange(4, 4 + T);
      require_same(pair, x, ctx);
      // Padding; with the window some rows see no key at all.
      ctx.mask.key_length = ctx.mask.query_length = at::tensor({T, int64_t{4}});
      require_same(pair, x, ctx);
      ctx.mask.causal = true;
      require_same(pair, x, ctx);
      ctx.mask.allowed = at::rand({B, H, T, T}) < 0.6;
      ctx.mask.allowed.select(2, 5).fill_(false);
      ctx.position_bias = &alibi;
      require_same(pair, x, ctx);
      ctx.bias = random({1, H, T, T});
      require_same(pair, x, ctx);
      ctx.bias = random({B, 1, 1, T});
      ctx.mask.allowed = at::rand({B, 1, 1, T}) < 0.8;
      require_same(pair, x, ctx);
      auto cross = HeadContext{};
      cross.backend = backend;
      cross.memory = random({B, 5, D});
      require_same(pair, x, cross);
      cross.mask.key_length = at::tensor({int64_t{5}, int64_t{0}});
      require_same(pair, x, cross);
    }
  }
}

TEST_CASE("moh: heads that serve every token or none are no exception", "[moh]") {
  Pair pair(", shared: 2, active: 2");
  const int64_t T = 210;  // several chunks of rows
  const auto x = tokens(T);
  for (const auto& logits : std::vector<std::vector<double>>{
           {60, -60, 0, 0}, {-60, -60, 60, 50}, {0, -60, 0, 0}, {0, 0, 0, 0}}) {
    pair.prefer(logits);
    const auto served = pair.dense->forward(x).gates.narrow(2, 2, 4) != 0;
    const auto share = served.to(at::kDouble).mean(at::IntArrayRef({0, 1}));
    INFO("shares of tokens " << share);
    for (size_t n = 0; n < 4; ++n)
      if (std::abs(logits[n]) > 40) REQUIRE(share[n].item<double>() == (logits[n] > 0 ? 1 : 0));
    require_same(pair, x, causal(50));
    auto ctx = HeadContext{};
    require_same(pair, x, ctx);
    ctx.mask.window = 50;
    ctx.mask.key_length = at::tensor({T, int64_t{30}});
    require_same(pair, x, ctx);
    ctx.mask.causal = true;
    require_same(pair, x, ctx);
  }
}

TEST_CASE("moh: what `auto` chooses for long sequences is exact", "[moh]") {
  const Pair pair(", shared: 2, active: 2");
  const auto automatic = make_layer("moh", small_shape(H, H), ", shared: 2, active: 2");
  copy_weights(automatic, pair.dense);
  const auto x = tokens(300);
  const auto dense = pair.dense->forward(x, causal()).y;
  REQUIRE(difference(dense, automatic->forward(x, causal()).y) < 1e-12);
  REQUIRE(difference(pair.sparse->forward(x, causal()).y, automatic->forward(x, causal()).y) == 0);
  const auto seen = run(automatic, x, causal());
  REQUIRE(difference(seen.y, automatic->forward(x, causal()).y) == 0);
}

TEST_CASE("moh: what skipped rows say is shown and edited as if they had been computed", "[moh]") {
  const Pair pair(", shared: 2, active: 2, o_bias: true");
  const auto x = tokens(9);
  auto ctx = causal();
  ctx.offset = random({1, H, 1, 6});
  ctx.gates = random({B, H, 9, 6});
  const auto y = [&](const Layer& layer) { return layer->forward(x, ctx).y; };
  REQUIRE(difference(y(pair.dense), y(pair.sparse)) < 1e-12);
  for (bool offset : {true, false}) {
    if (!offset) ctx.offset = Tensor();
    const auto outputs = [&](const Layer& layer) {
      HeadProbe probe;
      probe.head_outputs = true;
      ctx.observer = &probe;
      layer->forward(x, ctx);
      ctx.observer = nullptr;
      return probe.layer_outputs().at(1);
    };
    const auto dense = outputs(pair.dense), sparse = outputs(pair.sparse);
    REQUIRE(sparse.counted.equal(dense.counted));
    REQUIRE(difference(dense.edited, sparse.edited) < 1e-12);
    REQUIRE(difference(dense.o.index({dense.counted}), sparse.o.index({dense.counted})) < 1e-12);
  }
}

TEST_CASE("moh: skipped rows refuse second derivatives instead of giving wrong ones", "[moh]") {
  const Pair pair(", shared: 2, active: 2");
  const auto x = tokens(9).requires_grad_();
  const auto y = pair.sparse->forward(x, causal()).y.square().sum();
  REQUIRE_THROWS_WITH(torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true),
                      Catch::Contains("no second derivatives"));
}

TEST_CASE("moh: skipped rows run alike on one thread and on several", "[moh]") {
  const Pair pair(", shared: 2, active: 2");
  const auto x = tokens(250);
  const int threads = at::get_num_threads();
  std::vector<Tensor> y, gradients;
  for (int n : {1, 3}) {
    at::set_num_threads(n);
    const auto input = x.clone().requires_grad_();
    y.push_back(pair.sparse->forward(input, causal()).y);
    y.back().square().sum().backward();
    gradients.push_back(input.grad());
  }
  at::set_num_threads(threads);
  REQUIRE(difference(y[0], y[1]) < 1e-13);
  REQUIRE(difference(gradients[0], gradients[1]) < 1e-10);
}

TEST_CASE("moh: rows are skipped in inference mode too, on several threads", "[moh]") {
  const Pair pair(", shared: 2, active: 2");
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const torch::InferenceMode inference;
  const auto x = tokens(250);
  const auto dense = pair.dense->forward(x, causal()).y,
             sparse = pair.sparse->forward(x, causal()).y;
  at::set_num_threads(threads);
  REQUIRE(relative_difference(sparse, dense) < 1e-12);
}

TEST_CASE("moh: skipped rows drop weights by the counter", "[moh]") {
  auto shape = small_shape(H, H);
  shape.dropout = 0.4;
  const auto layer = make_layer("moh", shape, ", shared: 2, active: 2, compute: sparse");
  const auto x = tokens(8).narrow(0, 0, 1);
  const auto whole = layer->forward(x, causal()).y;
  layer->train();
  auto at_step = [&](uint64_t step) {
    auto ctx = causal();
    ctx.rng = {.seed = 5, .step = step};
    return layer->forward(x, ctx).y.detach();
  };
  REQUIRE(difference(at_step(1), at_step(1)) == 0);
  REQUIRE(difference(at_step(1), at_step(2)) > 1e-6);
  // Every example draws for itself.
  at::NoGradGuard no_grad;
  const auto mean = layer->forward(x.expand({4000, 8, D}), causal()).y.mean(0, true);
  REQUIRE((mean - whole).norm().item<double>() < 0.05 * whole.norm().item<double>());
}

TEST_CASE("moh: sliced equals masked for every option, and sliced again", "[moh]") {
  const int64_t T = 7;
  const auto x = random({B, T, D});
  auto ctx = causal();
  ctx.bias = random({1, H, T, T});
  ctx.gates = random({B, H, T});
  ctx.mask.allowed = at::rand({B, H, T, T}) < 0.8;
  auto options = kOptions;
  options.push_back(", shared: 3, active: 2, gates: paper, balance: paper, compute: sparse");
  options.push_back(", shared: 2, active: 4, router: query_norm, straight_through: all");
  options.push_back(", shared: 6, active: 0");
  for (const auto& option : options) {
    const auto layer = make_layer("moh", small_shape(H, 3), option);
    layer->train();
    auto require_equal = [&](const Layer& small) {
      const auto got = small->forward(x, ctx), want = layer->forward(x, ctx);
      REQUIRE(difference(got.y, want.y) < 1e-12);
      REQUIRE(difference(got.gates, want.gates) < 1e-12);
      REQUIRE(got.aux.size() == want.aux.size());
      for (size_t n = 0; n < got.aux.size(); ++n)
        REQUIRE(difference(got.aux[n].value, want.aux[n].value) < 1e-12);
    };
    // A shared and a routed head; all shared; all routed; all but one; then more of what is left.
    for (const auto& gone : std::vector<std::vector<int64_t>>{
             {0, 3}, {0, 1, 2}, {2, 3, 4, 5}, {1, 2, 3, 4, 5}, {0, 1, 2, 3, 4}, {4}}) {
      INFO(option << ", without heads " << at::IntArrayRef(gone));
      layer->mask_heads(gone);
      const auto sliced = layer->slice();
      require_equal(sliced);
      auto more = gone;
      more.push_back(gone.back() == 5 ? 0 : 5);
      sliced->mask_heads({more.back()});
      layer->mask_heads(more);
      require_equal(sliced);
      require_equal(sliced->slice());
    }
  }
}

TEST_CASE("moh: pruned groups leave the formulas of what is left", "[moh]") {
  const auto x = random({B, 7, D});
  const auto layer = make_layer("moh", small_shape(H, H), ", shared: 2, active: 3");
  auto sums = [&](const std::vector<int64_t>& gone) {
    layer->mask_heads(gone);
    return layer->forward(x).gates.sum(-1);
  };
  const auto full = at::ones({B, 7}, at::kDouble);
  REQUIRE(difference(sums({0, 1}), 3 * full) < 1e-12);        // hs = 0: sum g = K
  REQUIRE(difference(sums({2, 3, 4, 5}), 2 * full) < 1e-12);  // K = 0: sum g = hs
  REQUIRE(difference(sums({0, 1, 2, 3}), 2 * full) < 1e-12);  // two routed heads left
  // An output gate of 0 leaves the head in its place of the K best; the mask lets the next in.
  layer->mask_heads({});
  const auto whole = layer->forward(x).gates;
  layer->mask_heads({2});
  const auto masked = layer->forward(x).gates;
  REQUIRE((masked.narrow(2, 2, 4) != 0).sum(-1).eq(3).all().item<bool>());
  REQUIRE((whole.select(2, 2) != 0).any().item<bool>());
  REQUIRE(masked.select(2, 2).abs().max().item<double>() == 0);
}

TEST_CASE("moh: patterns are of the rows that a head serves", "[moh]") {
  const int64_t T = 11;
  const auto x = random({B, T, D});
  for (const std::string compute : {"dense", "sparse"}) {
    const auto layer =
        make_layer("moh", small_shape(H, 2), ", shared: 2, active: 2, compute: " + compute);
    auto ctx = causal();
    ctx.mask.query_length = ctx.mask.key_length = at::tensor({T, int64_t{6}});
    auto seen = run(layer, x, ctx);
    const auto served = (layer->forward(x, ctx).gates != 0).transpose(1, 2);  // [B,H,T]
    REQUIRE(served.narrow(1, 2, 4).to(at::kDouble).mean().item<double>() == Approx(0.5));
    MapContext context;
    context.causal = true;
    context.allowed = served.unsqueeze(3);
    context.query_length = context.key_length = ctx.mask.key_length;
    HeadSums sums(H);
    add_patterns(sums, seen.map, context);
    const auto want = head_values(sums);
    for (const char* name : {"entropy", "max_weight", "mean_distance", "first_token", "self_token",
                             "participation_ratio", "positional_share", "js"})
      for (size_t n = 0; n < want.at(name).size(); ++n) {
        INFO(compute << " " << name << " " << n);
        const double got = seen.statistics[name][n], wanted = want.at(name)[n];
        REQUIRE(std::isnan(got) == std::isnan(wanted));
        if (!std::isnan(got)) REQUIRE(got == Approx(wanted).epsilon(1e-9).margin(1e-12));
      }
    // The norm of outputs needs the rows that were computed.
    const auto v = at::linear(x, parameter(layer, "v.weight")).view({B, T, 2, 6}).transpose(1, 2);
    const auto o = at::matmul(seen.map, repeat_kv(v, Tensor(), H)).norm(2, -1);  // [B,H,T]
    const auto counted = served & (at::arange(T) < ctx.mask.query_length.view({-1, 1, 1}));
    for (int64_t h = 0; h < H; ++h)
      REQUIRE(seen.statistics["output_norm"][h] ==
              Approx(o.select(1, h).masked_select(counted.select(1, h)).mean().item<double>()));
  }
}

TEST_CASE("moh: inside other gates it routes, prunes and balances as alone", "[moh]") {
  const auto x = random({B, 9, D});
  const std::string options = "{kind: moh, shared: 2, active: 2}";
  const auto outer = make_layer("gated", small_shape(H, 2), ", inner: " + options);
  const auto inner = make_layer("moh", small_shape(H, 2), ", shared: 2, active: 2");
  for (const auto& p : inner->named_parameters())
    set(inner, p.key(), parameter(outer, "inner." + p.key()));
  set(outer, "gate.log_alpha", at::full({H}, 20., at::kDouble));  // open
  for (const auto& gone : std::vector<std::vector<int64_t>>{{}, {0, 3}, {0, 1}}) {
    outer->mask_heads(gone);
    inner->mask_heads(gone);
    REQUIRE(difference(outer->forward(x, causal()).y, inner->forward(x, causal()).y) < 1e-12);
    REQUIRE(difference(outer->slice()->forward(x, causal()).y, inner->forward(x, causal()).y) <
            1e-12);
  }
}

}  // namespace headlab::test_moh_rows
