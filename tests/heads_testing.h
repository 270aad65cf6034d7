// What the tests of heads share: layers of any registered kind in float64, and random inputs.
#pragma once

#include "core/head_kinds.h"
#include "core/observe/probe.h"
#include "core/torch.h"
#include "experiments/models/position_kinds.h"

namespace headlab::testing {

// Numbers differ on every axis, so that swapped axes cannot pass.
inline HeadShape small_shape(int64_t heads = 4, int64_t kv_heads = 4) {
  HeadShape s;
  s.d_model = 20;
  s.heads = heads;
  s.head_dim = 6;
  s.kv_heads = kv_heads;
  s.layers = 3;
  s.layer = 1;
  s.context = 40;  // no law has more tokens
  return s;
}

// A layer with weights large enough that heads differ, in eval mode.
inline std::shared_ptr<AttentionHeads> make_layer(const std::string& kind, const HeadShape& shape,
                                                  const std::string& options = "",
                                                  int64_t seed = 0) {
  KindBlock block(head_registry(), kind);
  Problems problems;
  block.read(parse_config("{kind: " + kind + options + "}", "test"), "attention", problems);
  problems.raise();
  torch::manual_seed(seed);
  auto heads = make_heads(block, shape);
  heads->to(at::kDouble);
  at::NoGradGuard no_grad;
  for (auto& p : heads->parameters()) p.normal_(0, 0.5);
  heads->eval();
  return heads;
}

// A map by its name or its mapping: "sigmoid", "{kind: entmax, alpha: 2}".
inline MapPtr make_map(const std::string& written) {
  MapBlock block;
  Problems problems;
  block.read(parse_value(written, {"test", 1, 1, {}}, "map"), "map", problems);
  problems.raise();
  return block.options().map();
}

inline Tensor random(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

inline double difference(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), a.sizes(), " against ", b.sizes());
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

// The same relative to the size of what is wanted, for kinds whose outputs are far from 1.
inline double relative_difference(const Tensor& got, const Tensor& want) {
  return difference(got, want) / (1 + (want.numel() == 0 ? 0 : want.abs().max().item<double>()));
}

inline HeadContext causal(int64_t window = 0) {
  HeadContext ctx;
  ctx.mask.causal = true;
  ctx.mask.window = window;
  return ctx;
}

// What a pass gives, and the gradients of a loss that weighs its numbers apart, by name.
struct Gradients {
  Tensor y;
  std::map<std::string, Tensor> of;
};

inline Gradients gradients(AttentionHeads& heads, const Tensor& input, HeadContext ctx) {
  heads.zero_grad();
  const auto x = input.detach().clone().requires_grad_();
  if (ctx.memory.defined()) ctx.memory = ctx.memory.detach().clone().requires_grad_();
  const auto y = heads.forward(x, ctx).y;
  (y * at::arange(y.numel(), y.options()).view_as(y).sin()).sum().backward();
  Gradients result{y.detach(), {{"x", x.grad()}}};
  if (ctx.memory.defined()) result.of["memory"] = ctx.memory.grad();
  for (const auto& p : heads.named_parameters())
    if (p.value().grad().defined()) result.of[p.key()] = p.value().grad().clone();
  return result;
}

}  // namespace headlab::testing
