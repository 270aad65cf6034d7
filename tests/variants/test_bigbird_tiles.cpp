// BigBird by tiles: the same numbers as its dense map, in memory linear in the sequence.
#include <torch/csrc/autograd/autograd.h>

#include "experiments/benchmarks/allocations.h"
#include "tests/bigbird_testing.h"
#include "tests/catch.h"

namespace headlab::test_bigbird_tiles {
using namespace testing;

namespace {

struct Result {
  Tensor y;
  std::vector<Tensor> gradients;
};

// Outputs, and gradients of all parameters, x and `more`.
Result differentiate(AttentionHeads& layer, const Tensor& x, HeadContext ctx, Backend backend,
                     std::vector<Tensor> more = {}) {
  ctx.backend = backend;
  auto wanted = layer.parameters();
  wanted.push_back(x);
  wanted.insert(wanted.end(), more.begin(), more.end());
  const auto y = layer.forward(x, ctx).y;
  torch::manual_seed(3);
  return {y, torch::autograd::grad({(y * random(y.sizes())).sum()}, wanted)};
}

void require_same(const Result& got, const Result& want) {
  REQUIRE(difference(got.y, want.y) < 1e-12);
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (size_t n = 0; n < want.gradients.size(); ++n)
    REQUIRE(difference(got.gradients[n], want.gradients[n]) < 1e-11);
}

// The layer's tiles against its dense map.
void require_tiles_equal_map(AttentionHeads& layer, const Tensor& x, const HeadContext& ctx,
                             const std::vector<Tensor>& more = {}) {
  require_same(differentiate(layer, x, ctx, Backend::kAuto, more),
               differentiate(layer, x, ctx, Backend::kEager, more));
}

}  // namespace

TEST_CASE("bigbird is mha with the recipe's mask, by tiles and by the dense map", "[bigbird]") {
  for (const Blocks& o : std::vector<Blocks>{{2, 2, 3, 2, 7},
                                             {3, 1, 1, 1, 5},
                                             {3, 0, 3, 2, 1},
                                             {4, 3, 1, 0, 0},
                                             {1, 2, 5, 3, 18446744073709551615ull},
                                             {2, 5, 1, 4, 9},
                                             {5, 2, 3, 1, 3}})
    for (bool is_causal : {false, true})
      for (int64_t T : {1, 13, 29}) {
        INFO(o.options() << " T " << T << (is_causal ? " causal" : ""));
        const auto layer = make_layer("bigbird", small_shape(), o.options());
        const auto mha = make_layer("mha", small_shape());
        auto x = random({2, T, 20}).requires_grad_();
        const auto ctx = is_causal ? causal() : HeadContext{};
        auto masked = ctx;
        masked.mask.allowed = pattern(o, 4, T, is_causal);
        const auto want = differentiate(*mha, x, masked, Backend::kEager);
        require_same(differentiate(*layer, x, ctx, Backend::kAuto), want);
        require_same(differentiate(*layer, x, ctx, Backend::kEager), want);
      }
}

TEST_CASE("bigbird's tiles are the dense map under every mask", "[bigbird]") {
  const int64_t T = 29;
  for (const auto& o : {kSmall, Blocks{2, 0, 3, 1, 8}})
    for (bool is_causal : {false, true}) {
      const int64_t window = is_causal ? 0 : 8;
      INFO(o.options() << " window " << window << (is_causal ? " causal" : ""));
      const auto layer = make_layer("bigbird", small_shape(4, 2), o.options() + ", bias: true");
      auto x = random({2, T, 20}).requires_grad_();
      auto plain = is_causal ? causal(window) : HeadContext{};
      plain.mask.window = window;
      require_tiles_equal_map(*layer, x, plain);
      auto padded = plain;
      padded.mask.key_length = padded.mask.query_length = at::tensor({T, int64_t{10}});
      require_tiles_equal_map(*layer, x, padded);
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{T},
                                                                 {T, T},
                                                                 {T, 1},
                                                                 {4, T, T},
                                                                 {2, 1, 1, T},
                                                                 {2, 4, T, T},
                                                                 {1, 4, 1, T},
                                                                 {2, 1, T, 1}}) {
        auto masked = padded;
        masked.mask.allowed = at::rand(sizes) < 0.6;  // some rows are left without any key
        require_tiles_equal_map(*layer, x, masked);
      }
    }
}

TEST_CASE("bigbird's tiles are the dense map with biases, gates, norms and positions",
          "[bigbird]") {
  const int64_t T = 29;
  const Rotary rotary;
  for (bool is_causal : {false, true}) {
    const auto layer = make_layer("bigbird", small_shape(4, 2),
                                  kSmall.options() + ", bias: true, qk_norm: true, scale: 0.9");
    auto x = random({2, T, 20}).requires_grad_();
    auto ctx = is_causal ? causal() : HeadContext{};
    ctx.rotary = &rotary;
    ctx.positions = at::arange(T).mul(3).add(2);
    ctx.gates = random({2, 4, T}).requires_grad_();
    require_tiles_equal_map(*layer, x, ctx, {ctx.gates});
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{T}, {T, T}, {1, 4, T, T}, {2, 1, 1, T}}) {
      ctx.bias = random(sizes);
      require_tiles_equal_map(*layer, x, ctx);
      ctx.bias.requires_grad_();
      require_tiles_equal_map(*layer, x, ctx, {ctx.bias});
    }
    ctx.bias = random({1, 4, T, T});
    const Alibi alibi(4, at::kDouble);
    ctx.position_bias = &alibi;
    require_tiles_equal_map(*layer, x, ctx);
    const auto weight = random({32, 4}).requires_grad_();
    const RelativeBias relative(weight, 20, is_causal);
    ctx.position_bias = &relative;
    require_tiles_equal_map(*layer, x, ctx, {weight});
  }
}

TEST_CASE("dropout on bigbird's tiles is a function of the counter and keeps the mean",
          "[bigbird]") {
  auto shape = small_shape();
  shape.dropout = 0.4;
  const auto layer = make_layer("bigbird", shape, Blocks{3, 1, 1, 1, 5}.options());
  const auto x = random({1, 29, 20});
  at::NoGradGuard no_grad;
  const auto kept = layer->forward(x).y;
  layer->train();
  const auto at_step = [&](uint64_t step) {
    HeadContext ctx;
    ctx.rng = {.seed = 0, .step = step};
    return layer->forward(x, ctx).y;
  };
  REQUIRE(difference(at_step(1), at_step(1)) == 0);
  REQUIRE(difference(at_step(1), at_step(2)) > 1e-3);
  const int64_t examples = 600;  // each of which draws for itself
  const auto all = layer->forward(x.expand({examples, 29, 20})).y;
  const auto mean = all.mean(0, true),
             error = all.std(at::IntArrayRef({0}), true, true) / std::sqrt(examples);
  REQUIRE((mean - kept).abs().div(error).max().item<double>() < 5.5);
}

TEST_CASE("bigbird in bfloat16 computes its softmax in float32", "[bigbird]") {
  const auto layer = make_layer("bigbird", small_shape(), kSmall.options());
  const auto x = random({1, 29, 20});
  const auto want = layer->forward(x).y;
  layer->to(at::kBFloat16);
  const auto y = layer->forward(x.to(at::kBFloat16)).y;
  REQUIRE(y.scalar_type() == at::kBFloat16);
  REQUIRE(difference(y.to(at::kDouble), want) < 0.02 * want.abs().max().item<double>());
}

TEST_CASE("bigbird's memory is linear in the sequence, a dense map's is not", "[bigbird][memory]") {
  const auto growth = [](const Blocks& o, bool is_causal, double dropout, Backend backend) {
    const auto peak = [&](int64_t tokens) {
      auto shape = small_shape();
      shape.dropout = dropout;
      const auto layer = make_layer("bigbird", shape, o.options());
      layer->train();
      const auto x = random({1, tokens, 20}).requires_grad_();
      auto ctx = is_causal ? causal() : HeadContext{};
      ctx.backend = backend;
      const auto run = [&] { layer->forward(x, ctx).y.sum().backward(); };
      run();  // gradients of weights stay
      return static_cast<double>(allocations_of(run).peak);
    };
    return peak(1024) / peak(256);
  };
  const Blocks o{4, 2, 3, 3, 0};
  for (bool is_causal : {false, true})
    REQUIRE(growth(o, is_causal, is_causal ? 0.1 : 0, Backend::kAuto) < 4.4);
  REQUIRE(growth(o, false, 0, Backend::kEager) > 12);
}

}  // namespace headlab::test_bigbird_tiles
