// What the tests of heads that keep a state by the delta rule share: the equations token by token,
// without chunks, with torch's convolution.
#pragma once

#include <ATen/ops/conv1d.h>

#include <functional>
#include <numbers>

#include "core/errors.h"
#include "tests/layers_testing.h"

namespace headlab::testing {

// Of T tokens: q and k of norm 1 [B,H,T,d], v [B,H,T,e], b and log decays [B,H,T,1 or d].
struct DeltaParts {
  Tensor q, k, v, beta, g;
};

inline bool has(const Layer& layer, const std::string& name) {
  return layer->named_parameters().find(name) != nullptr;
}

// silu(conv(x W^T)), each head of a group beside the others that share it: [B,H,T,width].
inline Tensor convolved(const Layer& layer, const Tensor& x, const std::string& name,
                        int64_t width) {
  auto u = at::linear(x, parameter(layer, name + ".weight"));  // [B,T,n*width]
  if (has(layer, name + "_conv.weight")) {
    const auto weight = parameter(layer, name + "_conv.weight");
    const auto bias = has(layer, name + "_conv.bias") ? parameter(layer, name + "_conv.bias")
                                                      : at::zeros({u.size(2)}, u.options());
    const int64_t w = weight.size(1);
    const auto all = at::conv1d(u.transpose(1, 2), weight.unsqueeze(1), bias, 1, w - 1, 1,
                                u.size(2));  // two-sided padding: what lies ahead is cut off
    u = all.narrow(2, 0, x.size(1)).transpose(1, 2);
  }
  u = at::silu(u);
  const auto heads = split_heads(u, u.size(2) / width);
  return heads.repeat_interleave(layer->shape().heads / heads.size(1), 1);
}

inline Tensor of_unit_norm(const Tensor& u) { return u / (u.square().sum(-1, true) + 1e-6).sqrt(); }

// All but the log decays, which the kinds make in their own ways.
inline DeltaParts delta_parts(const Layer& layer, const Tensor& x, double beta_factor = 1) {
  const int64_t d = layer->shape().head_dim, e = layer->value_width();
  const auto beta = at::sigmoid(at::linear(x, parameter(layer, "beta.weight"))) * beta_factor;
  return {of_unit_norm(convolved(layer, x, "q", d)), of_unit_norm(convolved(layer, x, "k", d)),
          convolved(layer, x, "v", e), beta.transpose(1, 2).unsqueeze(3), Tensor()};
}

struct Recurred {
  Tensor o, state;  // [B,H,T,e], [B,H,d,e] behind the last token
};

// S_t = Diag(a) S + b k (v - (Diag(a) S)^T k)^T, o_t = scale S_t^T q_t, one token after the other.
inline Recurred recurred(const DeltaParts& in, double scale) {
  auto state = at::zeros({in.q.size(0), in.q.size(1), in.q.size(3), in.v.size(3)}, in.q.options());
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < in.q.size(2); ++t) {
    const auto of = [t](const Tensor& all) { return all.select(2, t); };  // [B,H,.]
    state = of(in.g).exp().unsqueeze(3) * state;
    const auto k = of(in.k).unsqueeze(3);              // [B,H,d,1]
    const auto error = of(in.v) - (k * state).sum(2);  // [B,H,e]
    state = state + (of(in.beta).unsqueeze(3) * k) * error.unsqueeze(2);
    rows.push_back(scale * (of(in.q).unsqueeze(3) * state).sum(2));  // [B,H,e]
  }
  return {at::stack(rows, 2), state};
}

// A by its meaning: what heads say of values that are 1 at one token and 0 elsewhere.
inline Tensor map_of_recurrence(DeltaParts in, double scale) {
  const int64_t T = in.q.size(2);
  in.v = at::eye(T, in.q.options()).expand({in.q.size(0), in.q.size(1), T, T});
  return recurred(in, scale).o;
}

// Normed, times the gate [B,H,T,e] (undefined: 1), joined and projected.
inline Tensor said(const Layer& layer, const Tensor& o, const Tensor& gate, double eps = 1e-5) {
  auto normed = o / (o.square().mean(-1, true) + eps).sqrt() * parameter(layer, "norm.weight");
  if (gate.defined()) normed = normed * gate;
  return at::linear(normed.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
}

struct DeltaFormula {
  Tensor y, map, o, state;
  DeltaParts parts;
};
// A kind's equations for a layer and its input.
using DeltaEquations = std::function<DeltaFormula(const Layer&, const Tensor&)>;

inline DeltaFormula delta_formula(const Layer& layer, const DeltaParts& in, const Tensor& gate,
                                  double scale, double eps) {
  const auto [o, state] = recurred(in, scale);
  return {said(layer, o, gate, eps), map_of_recurrence(in, scale), o, state, in};
}

// The gradients of x and of all parameters of a sum that weighs the numbers of y apart.
inline std::vector<Tensor> gradients_of(const Layer& layer, const Tensor& x, const Tensor& y) {
  auto wanted = layer->parameters();
  wanted.push_back(x);
  const auto loss = (y * at::arange(y.numel(), y.options()).view_as(y).sin()).sum();
  return torch::autograd::grad({loss}, wanted);
}

// y, its gradients and the map of three chunks are those of the equations.
inline void require_equations(const Layer& layer, const DeltaEquations& equations) {
  const auto x = random({kBatch, 150, 20}).requires_grad_();
  const auto want = equations(layer, x);
  const auto right = gradients_of(layer, x, want.y);
  for (const auto backend : {Backend::kAuto, Backend::kEager}) {
    auto ctx = causal();
    ctx.backend = backend;
    const auto y = layer->forward(x, ctx).y;
    REQUIRE(relative_difference(y, want.y) < 1e-12);
    const auto got = gradients_of(layer, x, y);
    for (size_t n = 0; n < got.size(); ++n) REQUIRE(relative_difference(got[n], right[n]) < 1e-11);
  }
  const auto map = map_of(*layer, x.detach(), causal());
  REQUIRE(relative_difference(map, want.map) < 1e-12);
  REQUIRE(relative_difference(at::matmul(map, want.parts.v), want.o) < 1e-12);
  REQUIRE(map.triu(1).abs().max().item<double>() == 0);
}

// A layer of the kind refuses to be what a state cannot serve, by name.
inline void require_demands_refused(const std::string& kind) {
  REQUIRE_THROWS_WITH(make_layer(kind, small_shape(4, 2)),
                      Catch::Contains("kv_heads must be heads, 4"));
  const auto plain = read_kind(kind, "");
  const auto demanded = [&](const HeadDemands& demands, const char* message) {
    REQUIRE_THROWS_WITH(make_heads(plain, small_shape(), demands), Catch::Contains(message));
    REQUIRE_THROWS_AS(make_heads(plain, small_shape(), demands), ConfigError);
  };
  demanded({.bidirectional = true}, "must be causal");
  demanded({.window = true}, "know no window");
  demanded({.rotary = true}, "know no rotary positions");
  demanded({.bias = true}, "know no bias on their scores");
  demanded({.cross = true}, "have no cross-attention");
}

// What is logged of two examples, the second of 4 tokens, is what the equations say.
inline void require_delta_statistics(const Layer& layer, const DeltaEquations& equations) {
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({kTokens, int64_t{4}});
  const auto got = statistics_of(*layer, x, ctx);
  const auto first = equations(layer, x.narrow(0, 0, 1)),
             second = equations(layer, x.narrow(0, 1, 1).narrow(1, 0, 4));
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto both = [&](Tensor DeltaParts::*part) {
      const auto &one = first.parts.*part, &other = second.parts.*part;
      return at::cat({one[0][h].flatten(), other[0][h].flatten()});
    };
    const auto g = both(&DeltaParts::g);
    CHECK(got.at("decay_mean")[h] == Approx(g.exp().mean().item<double>()));
    CHECK(got.at("half_life")[h] == Approx(-std::numbers::ln2 / g.mean().item<double>()));
    CHECK(got.at("beta_mean")[h] == Approx(both(&DeltaParts::beta).mean().item<double>()));
    const auto norms = first.state[0][h].norm() + second.state[0][h].norm();
    CHECK(got.at("state_norm")[h] == Approx(norms.item<double>() / 2));
    const auto negative = first.map[0][h].clamp_max(0).sum() + second.map[0][h].clamp_max(0).sum();
    CHECK(got.at("composed_negative_mass")[h] == Approx(-negative.item<double>() / (kTokens + 4)));
  }
}

}  // namespace headlab::testing
