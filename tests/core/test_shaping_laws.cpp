// Laws of what a wrapper may ask of the layer inside it: shaped projections, and outputs without
// the share of a token's own value.
#include "core/wrapped_heads.h"
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_shaping_laws {
using namespace testing;

namespace {

// Asks the same of its layer in every call.
class Shaped : public WrappedHeads {
 public:
  Shaped(const std::shared_ptr<AttentionHeads>& inner, Shaping shaping)
      : WrappedHeads(around(inner), made_of(*inner)), shaping_(std::move(shaping)) {
    eval();
  }

 private:
  static HeadShape around(const std::shared_ptr<AttentionHeads>& inner) {
    auto shape = inner->shape();
    shape.wrapped = inner;
    return shape;
  }
  static WrapperOptions made_of(const AttentionHeads& inner) {
    WrapperOptions options(inner.kind().c_str());
    options.inner = *inner.made_of();
    return options;
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    auto own = call;
    own.shaping = shaping_;
    return run_inner(x, own);
  }

  Shaping shaping_;
};

Tensor shaped(const std::shared_ptr<AttentionHeads>& heads, const Shaping& shaping, const Tensor& x,
              const HeadContext& ctx) {
  return Shaped(heads, shaping).forward(x, ctx).y;
}

Tensor one() { return at::ones({}, at::kDouble); }

const std::vector<std::pair<std::string, Affine Shaping::*>> kProjections{
    {"q", &Shaping::q}, {"k", &Shaping::k}, {"v", &Shaping::v}};

// What heads say, and the values that their layer attends to.
class Listener : public HeadProbe {
 public:
  Listener() { maps = true; }
  Tensor o, v;

  void softmax(const AttentionCall& call, const Tensor&, const Tensor&) override { v = call.v; }
  void weights(const ObservedMap& map, const HeadCall&) override { v = map.v; }
  void outputs(const Tensor& said, const Tensor&, const HeadCall&) override { o = said; }
};

}  // namespace

TEST_CASE("scale 1, offset 0 and a share of 0 change nothing", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    Shaping nothing;
    for (const auto& [name, of] : kProjections) (nothing.*of) = {one(), 0 * one()};
    if (!s.traits.plain_projections) {
      REQUIRE_THROWS_WITH(shaped(s.heads, nothing, x, s.natural()),
                          Catch::Contains("no plain projections"));
      return;
    }
    if (s.traits.own_values) nothing.exclusion = 0 * one();
    REQUIRE(relative_difference(shaped(s.heads, nothing, x, s.natural()), s.y(x, s.natural())) <
            1e-12);
  });
}

TEST_CASE("shaped projections are those of other weights", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.plain_projections) return not_promised();
    if (head_kind(s.kind).options()->reads().any()) return not_promised();  // it shapes v itself
    const auto x = random({B, T, 20});
    const auto fields = describe_block(*head_registry().options(s.kind));
    const bool biased = std::ranges::any_of(fields, [](const auto& f) { return f.name == "bias"; });
    const auto options = s.options + (biased ? ", bias: true" : "");
    for (const auto& [name, of] : kProjections) {
      INFO(name);
      const auto heads = make_layer(s.kind, s.shape, options, 3);
      const auto factor = at::rand({4, 1, 6}, at::kDouble) + 0.5, more = random({4, 1, 6});
      Shaping shaping;
      (shaping.*of) = {factor, more};
      const auto y = shaped(heads, shaping, x, s.natural());
      REQUIRE(difference(y, heads->forward(x, s.natural()).y) > 1e-6);
      // Rows of heads, head after head.
      bool has_bias = false;
      at::NoGradGuard no_grad;
      for (auto& p : heads->named_parameters()) {
        if (p.key().ends_with(name + ".weight") && p.value().size(0) == 24)
          p.value().mul_(factor.view({24, 1}));
        if (p.key() == name + ".bias" || p.key().ends_with("." + name + ".bias")) {
          p.value().mul_(factor.view({24})).add_(more.view({24}));
          has_bias = true;
        }
      }
      if (has_bias) REQUIRE(relative_difference(heads->forward(x, s.natural()).y, y) < 1e-12);
    }
  });
}

TEST_CASE("of two affine maps the inner one comes first", "[laws]") {
  const auto y = random({2, 3}), a = random({3}), b = random({2, 1}), c = random({2, 3}),
             d = random({3});
  for (const auto& inner : {Affine{a, b}, Affine{a, {}}, Affine{{}, b}, Affine{}})
    for (const auto& outer : {Affine{c, d}, Affine{c, {}}, Affine{{}, d}, Affine{}})
      REQUIRE(difference(inner.before(outer)(y), outer(inner(y))) < 1e-14);
}

TEST_CASE("without its own value a token alone says nothing", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, 1, 20});
    Shaping exclusive{.exclusion = one()};
    if (!s.traits.own_values) {
      REQUIRE_THROWS_WITH(shaped(s.heads, exclusive, x, s.natural()),
                          Catch::Contains("no value of each token"));
      return;
    }
    auto silent = s.natural();
    silent.gates = at::zeros({1, 4, 1}, at::kDouble);
    REQUIRE(difference(shaped(s.heads, exclusive, x, s.natural()), s.y(x, silent)) < 1e-12);
    if (!s.traits.cross) return;
    HeadContext ctx;
    ctx.memory = random({B, 5, 20});
    REQUIRE_THROWS_WITH(shaped(s.heads, exclusive, x, ctx), Catch::Contains("no own value"));
  });
}

TEST_CASE("outputs without the own value are at right angles to it", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.own_values || !s.traits.plain_projections) return not_promised();
    for (const int64_t kv_heads : {4, 2}) {
      if (kv_heads < 4 && !s.traits.grouped) continue;
      const auto heads = s.make(small_shape(4, kv_heads));
      Listener listener;
      auto ctx = s.natural();
      ctx.observer = &listener;
      shaped(heads, {.exclusion = one()}, random({B, T, 20}), ctx);
      REQUIRE(listener.o.abs().max().item<double>() > 1e-3);
      const auto v = listener.v.repeat_interleave(4 / listener.v.size(1), 1);  // [B,H,T,e]
      REQUIRE((listener.o * v).sum(-1).abs().max().item<double>() <
              1e-11 * v.square().sum(-1).max().item<double>());
    }
  });
}

TEST_CASE("what a wrapper asks is the same while decoding, and has gradients", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.own_values) return not_promised();
    Shaping shaping{.exclusion = at::rand({1, 4, 1}, at::kDouble).requires_grad_()};
    if (s.traits.plain_projections)
      for (const auto& [name, of] : kProjections)
        (shaping.*of) = {random({4, 1, 1}).requires_grad_(), random({4, 1, 6}).requires_grad_()};
    Shaped heads(s.heads, shaping);
    const auto x = random({B, T, 20});
    const auto whole = heads.forward(x, s.natural()).y;
    (whole * random({B, T, 20})).sum().backward();
    if (s.kind != "xsa")  // which takes out all there is
      REQUIRE(shaping.exclusion.grad().abs().sum().item<double>() > 1e-9);
    if (s.traits.plain_projections)
      for (const auto& [name, of] : kProjections) {
        INFO(name);
        REQUIRE((shaping.*of).scale.grad().defined());
        REQUIRE((shaping.*of).offset.grad().defined());
      }
    if (!s.traits.decodes) return;
    at::NoGradGuard no_grad;
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    for (const auto& [at, chunk] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 1}, {4, 3}})
      REQUIRE(relative_difference(heads.forward(x.narrow(1, at, chunk), ctx).y,
                                  whole.narrow(1, at, chunk)) < 1e-12);
  });
}

}  // namespace headlab::test_shaping_laws
