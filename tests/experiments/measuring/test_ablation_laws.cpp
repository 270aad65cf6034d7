// Laws of ablation that every registered kind must obey: heads that weigh all keys equally, and
// outputs that are exchanged.
#include <cmath>

#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_ablation_laws {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7;

struct Observed {
  Tensor y;
  HeadProbe probe;
  std::map<std::string, std::vector<double>> values;
};

Observed observe(AttentionHeads& heads, const Tensor& x, HeadContext ctx) {
  Observed seen;
  seen.probe.statistics = seen.probe.head_outputs = true;
  ctx.observer = &seen.probe;
  seen.y = heads.forward(x, ctx).y;
  seen.values = seen.probe.values(heads.shape().layer);
  return seen;
}

// Every kind with everything in its scores that its traits allow.
template <class Law>
void for_every_kind(Law law) {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      auto heads = make_layer(kind, small_shape());
      const auto& traits = heads->traits();
      const Alibi slopes(4, at::kDouble);
      HeadContext ctx;
      ctx.mask.causal = traits.causal;
      if (traits.biases) ctx.bias = random({1, 4, T, T}), ctx.position_bias = &slopes;
      if (traits.masks == HeadMasks::kAny) ctx.mask.allowed = at::rand({B, 1, T, T}) < 0.8;
      law(*heads, random({B, T, 20}), ctx);
    }
}

}  // namespace

// Weights of a kind that has any: those that are not over tokens are equal over what they are of.
TEST_CASE("heads told to be uniform weigh all allowed keys equally", "[laws]") {
  for_every_kind([](AttentionHeads& heads, const Tensor& x, HeadContext ctx) {
    const auto before = observe(heads, x, ctx);
    if (heads.traits().map == HeadMap::kNone) {  // no weights to make uniform
      ctx.uniform = at::ones({4}, at::kBool);
      REQUIRE(difference(heads.forward(x, ctx).y, before.y) == 0);
      return;
    }
    ctx.uniform = at::zeros({4}, at::kBool);
    ctx.uniform[2] = true;
    for (auto backend : {Backend::kAuto, Backend::kEager}) {
      ctx.backend = backend;
      const auto after = observe(heads, x, ctx);
      const auto &was = before.values.at("entropy_normalized"),
                 &is = after.values.at("entropy_normalized");
      for (int64_t h = 0; h < 4; ++h) {
        INFO("head " << h);
        if (h == 2) {
          REQUIRE(is[h] == Approx(1).epsilon(1e-9));
          REQUIRE(was[h] < 0.99);
        } else if (heads.traits().independent) {
          REQUIRE(is[h] == Approx(was[h]).epsilon(1e-12));
        }
      }
      REQUIRE(difference(before.y, after.y) > 1e-6);
    }
  });
}

TEST_CASE("what a head says can be put in by gate and offset", "[laws]") {
  for_every_kind([](AttentionHeads& heads, const Tensor& x, HeadContext ctx) {
    const int64_t layer = heads.shape().layer;
    const auto whole = observe(heads, x, ctx);
    const auto& said = whole.probe.layer_outputs().at(layer).edited;
    REQUIRE(said.sizes() == at::IntArrayRef({B, 4, T, heads.value_width()}));
    const auto swap = [&](int64_t h) {
      ctx.gates = at::ones({1, 4, 1}, at::kDouble);
      ctx.gates[0][h] = 0;
      ctx.offset = at::zeros_like(said);
      ctx.offset.select(1, h).copy_(said.select(1, h));
    };
    for (int64_t h = 0; h < 4; ++h) {
      swap(h);
      REQUIRE(relative_difference(heads.forward(x, ctx).y, whole.y) < 1e-12);
    }
    // Another output there is another y; sliced layers count in original indices too.
    ctx.offset = ctx.offset + 1;
    REQUIRE(difference(heads.forward(x, ctx).y, whole.y) > 1e-6);
    heads.mask_heads({1});
    const auto masked = heads.forward(x, ctx).y;
    REQUIRE(relative_difference(heads.slice()->forward(x, ctx).y, masked) < 1e-11);
  });
}

TEST_CASE("the gradient at gates of one is what each head's output weighs", "[laws]") {
  for_every_kind([](AttentionHeads& heads, const Tensor& x, HeadContext ctx) {
    const auto cot = random({B, T, 20});
    ctx.gates = at::ones({B, 4, T}, at::kDouble).requires_grad_();
    (heads.forward(x, ctx).y * cot).sum().backward();
    // y is linear in the gates: the gradient is the difference of 1 to 0.
    at::NoGradGuard no_grad;
    const auto gradient = ctx.gates.grad();
    const auto whole = (heads.forward(x, ctx).y * cot).sum();
    for (int64_t h = 0; h < 4; ++h) {
      auto without = ctx;
      without.gates = at::ones({1, 4, 1}, at::kDouble);
      without.gates[0][h] = 0;
      const auto lost = whole - (heads.forward(x, without).y * cot).sum();
      REQUIRE(relative_difference(gradient.select(1, h).sum(), lost) < 1e-11);
    }
  });
}

}  // namespace headlab::test_ablation_laws
