// What the tests of kinds that choose what a query sees share.
#pragma once

#include "core/attention/call/choice_observer.h"
#include "tests/isa_testing.h"
#include "tests/layers_testing.h"

namespace headlab::testing {

// Keeps what queries chose, too.
struct ChoiceProbe : HeadProbe, ChoiceObserver {
  std::map<std::string, Tensor> chosen;
  ChoiceProbe() { maps = true; }
  void choice(const std::string& of, const Tensor& given) override { chosen[of] = given; }
};

inline Tensor chosen_by(const Layer& layer, const Tensor& x, HeadContext ctx,
                        const char* of = "blocks") {
  ChoiceProbe probe;
  ctx.observer = &probe;
  layer->forward(x, ctx);
  return probe.chosen.at(of);
}

// A mask of keys [B,1,1,T], 1 = visible, from a list of 0 and 1 for each example.
inline Tensor key_mask(const std::vector<std::vector<int>>& rows) {
  auto mask = at::zeros({std::ssize(rows), 1, 1, std::ssize(rows[0])}, at::kBool);
  for (size_t b = 0; b < rows.size(); ++b)
    for (size_t t = 0; t < rows[b].size(); ++t)
      mask[static_cast<int64_t>(b)][0][0][static_cast<int64_t>(t)] = rows[b][t] == 1;
  return mask;
}

// Padding on the left, on the right, and holes, of 13 tokens.
inline Tensor holes() {
  return key_mask({{0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                   {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},
                   {1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1}});
}

// Hidden tokens anywhere are as if they were not there, but that rope keeps the places; a hidden
// query says nothing.
inline void require_closing_up(const Layer& layer) {
  const Rotary rotary;
  const auto x = random({3, 13, 20});
  auto ctx = causal();
  ctx.rotary = &rotary;
  ctx.mask.allowed = holes();
  const auto y = layer->forward(x, ctx).y;
  const auto all = layer->named_parameters();
  const auto* bias = all.find("o.bias");
  for (int64_t b = 0; b < 3; ++b) {
    INFO("example " << b);
    const auto visible = ctx.mask.allowed[b][0][0].nonzero().squeeze(1);
    auto alone = causal();
    alone.rotary = &rotary;
    alone.positions = visible;
    const auto want = layer->forward(x.narrow(0, b, 1).index_select(1, visible), alone).y;
    REQUIRE(difference(y[b].index_select(0, visible), want[0]) < 1e-12);
    const auto hidden = ctx.mask.allowed[b][0][0].logical_not().nonzero().squeeze(1);
    const auto nothing = bias ? bias->detach().expand({hidden.size(0), 20})
                              : at::zeros({hidden.size(0), 20}, at::kDouble);
    REQUIRE(difference(y[b].index_select(0, hidden), nothing) < 1e-12);
  }
  auto other = x.clone();  // what is hidden has no say
  other.masked_fill_(ctx.mask.allowed.view({3, 13, 1}).logical_not(), 7.0);
  REQUIRE(difference(layer->forward(other, ctx).y, y) < 1e-12);
}

// Decoding in chunks equals the parallel pass, also with hidden tokens.
inline void require_decoding(const Layer& layer) {
  at::NoGradGuard no_grad;
  const Rotary rotary;
  const auto x = random({3, 13, 20});
  for (const bool masked : {false, true}) {
    INFO((masked ? "masked" : "whole"));
    auto ctx = causal();
    ctx.rotary = &rotary;
    if (masked) ctx.mask.allowed = holes();
    const auto whole = layer->forward(x, ctx);
    LayerCache cache;
    int64_t at = 0;
    for (const int64_t chunk : {4, 1, 1, 3, 1, 1, 1, 1}) {
      auto part = ctx;
      part.cache = &cache;
      if (masked) part.mask.allowed = ctx.mask.allowed.narrow(3, 0, at + chunk);
      const auto out = layer->forward(x.narrow(1, at, chunk), part);
      INFO("places " << at << " to " << at + chunk - 1);
      REQUIRE(relative_difference(out.y, whole.y.narrow(1, at, chunk)) < 1e-12);
      at += chunk;
    }
  }
}

// The kernels of every instruction set against the map of all pairs, with gradients.
inline void require_kernels(const Layer& layer, const Tensor& x, double limit) {
  auto ctx = causal();
  ctx.backend = Backend::kEager;
  const auto want = gradients(*layer, x, ctx);
  ctx.backend = Backend::kAuto;
  for (const Isa isa : isas_of_machine()) {
    INFO("with HEADLAB_ISA=" << isa_name(isa));
    const WithIsa with(isa);
    const auto got = gradients(*layer, x, ctx);
    REQUIRE(relative_difference(got.y, want.y) < limit);
    for (const auto& [name, gradient] : want.of) {
      INFO("gradient of " << name);
      REQUIRE(relative_difference(got.of.at(name), gradient) < 10 * limit);
    }
  }
}

// A ConfigError that says `what`.
inline void require_refused(const std::string& kind, const std::string& options,
                            const HeadDemands& demands, const std::string& what) {
  try {
    make_heads(read_kind(kind, options), small_shape(), demands);
    FAIL("it was built");
  } catch (const ConfigError& error) {
    REQUIRE_THAT(std::string(error.what()), Catch::Contains(what));
  }
}

}  // namespace headlab::testing
