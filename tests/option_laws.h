// Laws of tests/core/test_laws.cpp and test_slicing_laws.cpp, which run there for the defaults of
// each kind, for other options. The kind must be causal and decode; require_laws() wants one that
// is grouped and knows the options of mha.
#pragma once

#include <array>

#include "tests/catch.h"
#include "tests/layers_testing.h"

namespace headlab::testing {

constexpr int64_t kBatch = 2, kTokens = 7, kHeads = 4;

// A bias, and a mask that differs by head and hides a whole row.
inline HeadContext masked_context() {
  auto ctx = causal();
  ctx.bias = random({1, kHeads, kTokens, kTokens});
  ctx.mask.allowed = at::rand({kBatch, kHeads, kTokens, kTokens}) < 0.8;
  ctx.mask.allowed.select(2, 4).fill_(false);
  return ctx;
}

inline Tensor map_of(AttentionHeads& heads, const Tensor& x, HeadContext ctx) {
  HeadProbe probe;
  probe.maps = true;
  ctx.observer = &probe;
  heads.forward(x, ctx);
  return probe.layer_maps().at(heads.shape().layer);
}

inline std::map<std::string, std::vector<double>> statistics_of(AttentionHeads& heads,
                                                                const Tensor& x, HeadContext ctx) {
  HeadProbe probe;
  probe.statistics = true;
  probe.js_stride = 1;
  ctx.observer = &probe;
  heads.forward(x, ctx);
  return probe.values(heads.shape().layer);
}

inline void require_sliced_equals_masked(AttentionHeads& heads) {
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = masked_context();
  ctx.gates = random({kBatch, kHeads, kTokens});
  for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 1, 2}}) {
    INFO("removed heads " << at::IntArrayRef(gone));
    heads.mask_heads(gone);
    const auto masked = heads.forward(x, ctx).y;
    const auto sliced = heads.slice();
    REQUIRE(difference(sliced->forward(x, ctx).y, masked) < 1e-12);
    // Heads that are not there get no gradient.
    heads.zero_grad();
    (masked * random(masked.sizes())).sum().backward();
    const auto gradient = heads.named_parameters()["q.weight"].grad().view({kHeads, -1});
    for (int64_t h = 0; h < kHeads; ++h)
      if (!heads.alive()[h]) REQUIRE(gradient[h].abs().max().item<double>() == 0);
    REQUIRE(sliced->slice()->alive() == heads.alive());
  }
  const Rotary rotary;
  ctx.rotary = &rotary;
  heads.mask_heads({0, 1, 2, 3});
  REQUIRE(difference(heads.slice()->forward(x, ctx).y, heads.forward(x, ctx).y) < 1e-12);
  heads.mask_heads({});
}

inline void require_decoding(AttentionHeads& heads) {
  at::NoGradGuard no_grad;
  const auto x = random({kBatch, 20, 20});
  const Rotary rotary;
  const Alibi alibi(kHeads, at::kDouble);
  for (int64_t window : {0, 3}) {
    auto ctx = causal(window);
    ctx.rotary = &rotary;
    ctx.position_bias = &alibi;
    const auto whole = heads.forward(x, ctx).y;
    LayerCache cache;
    ctx.cache = &cache;
    int64_t at = 0;
    for (int64_t chunk : std::array<int64_t, 4>{5, 1, 1, 13}) {
      INFO("window " << window << ", places " << at << " to " << at + chunk - 1);
      const auto y = heads.forward(x.narrow(1, at, chunk), ctx).y;
      REQUIRE(difference(y, whole.narrow(1, at, chunk)) < 1e-12);
      at += chunk;
    }
  }
}

inline void require_masks(AttentionHeads& heads) {
  auto x = random({kBatch, kTokens, 20}).requires_grad_();
  const auto ctx = masked_context();
  const auto map = map_of(heads, x, ctx);
  const auto allowed = allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU);
  REQUIRE(map.masked_select(allowed.logical_not()).abs().max().item<double>() == 0);
  const auto y = heads.forward(x, ctx).y;
  const auto parameters = heads.named_parameters();
  const auto* o_bias = parameters.find("o.bias");
  const auto bias = o_bias ? *o_bias : at::zeros({20}, at::kDouble);
  REQUIRE(difference(y.select(1, 4), bias.expand({kBatch, 20})) < 1e-12);
  y.select(1, 4).sum().backward();
  REQUIRE(x.grad().abs().sum().item<double>() == 0);
  // Later tokens change nothing, nor does padding.
  const auto before = heads.forward(x, causal()).y;
  auto other = x.detach().clone();
  other.narrow(1, 5, 2).normal_();
  const auto after = heads.forward(other, causal()).y;
  REQUIRE(difference(before.narrow(1, 0, 5), after.narrow(1, 0, 5)) < 1e-12);
  REQUIRE(difference(before.narrow(1, 5, 2), after.narrow(1, 5, 2)) > 1e-6);
  const auto widest = heads.traits().bidirectional ? HeadContext{} : causal();
  auto padded = widest;
  padded.mask.key_length = padded.mask.query_length = at::full({kBatch}, 5, at::kLong);
  REQUIRE(difference(heads.forward(x, padded).y.narrow(1, 0, 5),
                     heads.forward(x.narrow(1, 0, 5), widest).y) < 1e-12);
}

// Of cross-attention, where the kind has it: then x and the memory have gradients of their own.
inline void require_gradients(AttentionHeads& heads) {
  auto x = random({kBatch, kTokens, 20}).requires_grad_();
  const bool cross = heads.traits().cross;
  auto memory = random({kBatch, 5, 20}).requires_grad_();
  const auto cotangent = random(x.sizes());
  auto ctx = cross ? HeadContext{} : causal();
  if (cross) ctx.memory = memory;
  ctx.mask.allowed = at::rand({kBatch, kHeads, kTokens, cross ? 5 : kTokens}) < 0.7;
  const auto loss = [&] { return (heads.forward(x, ctx).y * cotangent).sum(); };
  heads.zero_grad();
  loss().backward();
  auto subjects = heads.named_parameters();
  subjects.insert("x", x);
  if (cross) subjects.insert("memory", memory);
  at::NoGradGuard no_grad;
  for (const auto& p : subjects) {
    INFO(p.key());
    const auto direction = random(p.value().sizes());
    const double slope = (p.value().grad() * direction).sum().item<double>(), step = 1e-6;
    p.value().add_(direction, step);
    const double above = loss().item<double>();
    p.value().add_(direction, -2 * step);
    const double below = loss().item<double>();
    p.value().add_(direction, step);
    REQUIRE((above - below) / (2 * step) == Approx(slope).epsilon(1e-6).margin(1e-6));
  }
}

// Half types keep their type and stay near the numbers of float64.
inline void require_half(AttentionHeads& heads) {
  at::NoGradGuard no_grad;
  for (auto& p : heads.parameters()) p.copy_(p.to(at::kBFloat16));
  const auto x = random({kBatch, kTokens, 20}).to(at::kBFloat16);
  const auto exact = heads.forward(x.to(at::kDouble), causal()).y;
  heads.to(at::kBFloat16);
  const auto half = heads.forward(x, causal()).y;
  REQUIRE(half.scalar_type() == at::kBFloat16);
  REQUIRE(difference(half.to(at::kDouble), exact) < 0.1 * exact.abs().max().item<double>());
}

// `options` begins with a comma.
inline void require_laws(const std::string& kind, const std::string& options) {
  INFO(kind << options);
  const auto heads =
      make_layer(kind, small_shape(kHeads, 2), options + ", bias: true, qk_norm: true");
  require_sliced_equals_masked(*heads);
  require_decoding(*heads);
  require_masks(*heads);
  require_gradients(*heads);
  require_half(*heads);
}

}  // namespace headlab::testing
