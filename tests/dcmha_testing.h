// What the tests of dcmha share: layers of every combination of options, and their gradients.
#pragma once

#include "tests/heads_testing.h"

namespace headlab::testing {

inline const std::vector<std::string> kDcmhaOptions{
    "",
    ", static: true, qk_norm: true, bias: true",
    ", pre: false",
    ", post: false, static: true",
    ", query_wise: false",
    ", key_wise: false, rank: 3",
    ", query_wise: false, key_wise: false, static: true",
    ", gelu: erf, hidden: 5, qk_norm: true, qk_norm_kind: layer",
};

inline std::shared_ptr<AttentionHeads> dcmha(const std::string& options = "",
                                             HeadShape s = small_shape()) {
  return make_layer("dcmha", s, options);
}

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
  for (const auto& p : heads.named_parameters()) result.of[p.key()] = p.value().grad().clone();
  return result;
}

}  // namespace headlab::testing
