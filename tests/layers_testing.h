// What the tests of single kinds share: looking into a layer and setting its weights.
#pragma once

#include "experiments/analysis/maps/patterns.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

using Layer = std::shared_ptr<AttentionHeads>;

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

inline Tensor parameter(const Layer& layer, const std::string& name) {
  return layer->named_parameters()[name];
}

inline void set(const Layer& layer, const std::string& name, const Tensor& value) {
  at::NoGradGuard no_grad;
  parameter(layer, name).copy_(value);
}

// Every weight that both have under one name, in one shape.
inline void copy_weights(const Layer& to, const Layer& from) {
  const auto own = to->named_parameters();
  for (const auto& p : from->named_parameters())
    if (const auto* same = own.find(p.key()); same && same->sizes() == p.value().sizes())
      set(to, p.key(), p.value());
}

inline KindBlock read_kind(const std::string& kind, const std::string& options) {
  KindBlock block(head_registry(), kind);
  Problems problems;
  block.read(parse_config("{kind: " + kind + options + "}", "test"), "attention", problems);
  problems.raise();
  return block;
}

// A layer as it is before training, in float32.
inline Layer fresh(const std::string& kind, const HeadShape& shape, const std::string& options) {
  return make_heads(read_kind(kind, options), shape);
}

struct Seen {
  Tensor y, map;
  std::map<std::string, std::vector<double>> statistics;
};
// One pass with everything recorded.
inline Seen run(const Layer& layer, const Tensor& x, HeadContext ctx = {}) {
  HeadProbe probe;
  probe.maps = probe.statistics = true;
  probe.js_stride = 1;
  ctx.observer = &probe;
  const auto y = layer->forward(x, ctx).y;
  const int64_t at = layer->shape().layer;
  return {y, probe.layer_maps().at(at), probe.values(at)};
}

// What a layer says of the last token of x behind a cache of the others, turned and biased by
// distance: on the way that it takes, and on the one that makes keys and values for an observer.
struct TwoWays {
  Tensor taken, observed;
};
inline TwoWays last_token_both_ways(AttentionHeads& heads, const Tensor& x) {
  const Rotary rotary;
  const Alibi alibi(heads.heads(), at::kDouble);
  LayerCache cache;
  auto ctx = causal();
  ctx.rotary = &rotary, ctx.position_bias = &alibi, ctx.cache = &cache;
  const int64_t before = x.size(1) - 1;
  heads.forward(x.narrow(1, 0, before), ctx);
  auto again = cache;
  HeadProbe probe;
  probe.maps = true;
  auto watched = ctx;
  watched.cache = &again, watched.observer = &probe;
  const auto last = x.narrow(1, before, 1);
  const auto observed = heads.forward(last, watched).y;
  return {heads.forward(last, ctx).y, observed};
}

// Whether gradients agree with central differences.
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
    const auto gradient = p.value().grad();  // none where nothing reaches it
    const double slope = gradient.defined() ? (gradient * direction).sum().item<double>() : 0;
    const double step = 1e-6;
    p.value().add_(direction, step);
    const double above = loss().item<double>();
    p.value().add_(direction, -2 * step);
    const double below = loss().item<double>();
    p.value().add_(direction, step);
    REQUIRE((above - below) / (2 * step) == Approx(slope).epsilon(1e-6).margin(1e-6));
  }
}

// What was streamed of causal self-attention is what its map says. v [B,H,S,e]
inline void require_statistics_of_map(const Layer& layer, const Seen& seen, const Tensor& v) {
  MapContext context;
  context.allowed = allowed_keys(causal().mask, seen.map.size(2), seen.map.size(3), at::kCPU);
  context.causal = true;
  context.value_norm = value_norms(v, parameter(layer, "o.weight"));
  context.output = at::matmul(seen.map, v);
  HeadSums sums(seen.map.size(1));
  add_patterns(sums, seen.map, context);
  const auto expected = head_values(sums);
  for (const char* name : {"entropy", "mean_distance", "value_weighted_norm", "output_norm", "js"})
    for (size_t n = 0; n < expected.at(name).size(); ++n) {
      INFO(name << " " << n);
      REQUIRE(seen.statistics.at(name)[n] == Approx(expected.at(name)[n]).margin(1e-10));
    }
}

}  // namespace headlab::testing
