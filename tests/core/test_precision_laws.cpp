// Laws of numbers that every registered kind must obey: half precision, numbers that are none, and
// derivatives of derivatives.
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <limits>

#include "core/attention/composed/composition.h"
#include "core/errors.h"
#include "experiments/training/update.h"
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_precision_laws {
using namespace testing;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What an experiment may ask of a layer beside its kind.
struct Asked {
  std::string name;
  HeadContext ctx;
  std::shared_ptr<PositionBias> bias = nullptr;
  std::shared_ptr<Rotary> rotary = nullptr;
};

std::vector<Asked> all_asked(const Subject& s, at::ScalarType type) {
  std::vector<Asked> all{{"plain", s.widest()}};
  if (s.traits.rotary) {
    Asked rotated{"rotary", s.natural()};
    rotated.rotary = std::make_shared<Rotary>();
    rotated.ctx.rotary = rotated.rotary.get();
    all.push_back(rotated);
  }
  if (s.traits.windows && s.traits.biases) {
    Asked padded{"alibi, window and padding", s.natural()};
    padded.ctx.mask.window = 5;
    padded.ctx.mask.key_length = padded.ctx.mask.query_length = at::tensor({T, int64_t{4}});
    padded.bias = std::make_shared<Alibi>(4, type);
    padded.ctx.position_bias = padded.bias.get();
    all.push_back(padded);
  }
  if (s.traits.biases) {
    Asked biased{"relative and a bias", s.widest()};
    torch::manual_seed(9);
    biased.bias =
        std::make_shared<RelativeBias>(at::randn({16, 4}, at::kFloat), 32, s.traits.causal);
    biased.ctx.position_bias = biased.bias.get();
    biased.ctx.bias = at::randn({1, 4, T, T}, at::kFloat);
    all.push_back(biased);
  }
  return all;
}

Tensor in_autocast(AttentionHeads& heads, const Tensor& x, const HeadContext& ctx) {
  Autocast half(at::kCPU, /*bf16=*/true);
  return heads.forward(x, ctx).y;
}

void require_every_precision(bool all_maps) {
  torch::manual_seed(1);
  const auto x = at::randn({B, T, 20}).to(at::kBFloat16).to(at::kFloat);
  const auto of_fused = [&](bool autocast) {
    const auto mha = rounded_layer(Subject("mha"), "");
    auto ctx = causal();
    const auto want = mha->forward(x, ctx).y;
    ctx.backend = Backend::kSdpa;
    if (autocast) return error_of(in_autocast(*mha, x, ctx), want);
    mha->to(at::kBFloat16);
    return error_of(mha->forward(x.to(at::kBFloat16), ctx).y, want);
  };
  const double autocast_error = of_fused(true), half_error = of_fused(false);
  const auto law = [&](const Subject& s) {
    if (s.kind == "cog") return not_promised();  // its weights jump where a score passes 0
    for (const auto& options : norms_in_laws(s)) {
      const auto heads = rounded_layer(s, options), half = rounded_layer(s, options),
                 wide = rounded_layer(s, options);
      half->to(at::kBFloat16);
      wide->to(at::kDouble);
      const auto asked = all_asked(s, at::kFloat), asked_half = all_asked(s, at::kBFloat16),
                 asked_wide = all_asked(s, at::kDouble);
      for (size_t n = 0; n < asked.size(); ++n)
        for (const auto backend :
             {Backend::kAuto, Backend::kEager, Backend::kSdpa, Backend::kFlash, Backend::kRows}) {
          INFO(options << ", " << asked[n].name << ", backend " << static_cast<int>(backend));
          const auto at_backend = [&](HeadContext ctx) {
            ctx.backend = backend;
            return ctx;
          };
          const auto ctx = at_backend(asked[n].ctx);
          const auto want = heads->forward(x, asked[n].ctx).y;
          const auto near = [&](const char* what, auto run, double limit) {
            INFO(what);
            UNSCOPED_INFO(s.kind << s.options);
            try {
              const double found = error_of(run(), want);
              CHECK(found < limit);
            } catch (const BackendError&) {
              CHECK((backend != Backend::kAuto && backend != Backend::kEager));
            }
          };
          near(
              "autocast", [&] { return in_autocast(*heads, x, ctx); }, 4 * autocast_error);
          near(
              "bfloat16 weights",
              [&] { return half->forward(x.to(at::kBFloat16), at_backend(asked_half[n].ctx)).y; },
              4 * half_error);
          near(
              "float64",
              [&] { return wide->forward(x.to(at::kDouble), at_backend(asked_wide[n].ctx)).y; },
              1e-5);
          if (backend != Backend::kAuto && backend != Backend::kEager) continue;
          // Watched, and with gradients.
          HeadProbe probe;
          probe.statistics = probe.maps = true;
          auto watched = ctx;
          watched.observer = &probe;
          auto leaf = x.clone().requires_grad_();
          in_autocast(*heads, leaf, watched).sum().backward();
          CHECK(leaf.grad().isfinite().all().item<bool>());
          auto watched_half = at_backend(asked_half[n].ctx);
          watched_half.observer = &probe;
          probe.reset();
          half->forward(x.to(at::kBFloat16), watched_half);
        }
    }
  };
  for_every_kind(law, all_maps);
}

}  // namespace

TEST_CASE("every kind runs in every precision, as near to float32 as torch's fused attention",
          "[laws][precision][variants]") {
  require_every_precision(false);
}

TEST_CASE("every kind runs in every precision with every map", "[precision][variants][.slow]") {
  require_every_precision(true);
}

TEST_CASE("scores and maps are in float32 under autocast, however wide queries and keys are",
          "[laws][precision][variants]") {
  torch::manual_seed(2);
  const auto draw = [](int64_t n) { return at::randn({2, 3, n, 64}).to(at::kBFloat16); };
  const auto q = draw(40), k = draw(40), v = draw(40);
  HeadContext ctx = causal();
  const Alibi alibi(3, at::kFloat);
  const auto layer_call = [&](Backend backend, const MapPtr& map) {
    ctx.backend = backend;
    auto call = HeadCall::from_context(ctx);
    call.map = map;
    return call;
  };
  const auto fused = [&] {
    const auto want = attend(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble),
                             layer_call(Backend::kEager, plain_softmax()), 0.125);
    Autocast half(at::kCPU, /*bf16=*/true);
    return error_of(attend(q, k, v, layer_call(Backend::kSdpa, plain_softmax()), 0.125), want);
  }();
  CHECK(fused < 5e-3);
  const std::vector<MapPtr> maps{
      plain_softmax(),
      make_map("sink")->with_learned(at::tensor({0.3, -1., 2.}).to(at::kFloat)),
      make_map("entmax"),
      make_map("{kind: entmax, learn_alpha: true}")
          ->with_learned(at::logit(at::tensor({0.2, 0.5, 0.9})).to(at::kFloat)),
      make_map("sigmoid"),
      make_map("softpick"),
      plain_softmax()};
  const auto mixing = at::eye(3) + 0.3 * at::randn({3, 3});
  for (size_t n = 0; n < maps.size(); ++n)
    for (const bool biased : {false, true})
      for (const bool wide : {false, true})
        for (const auto backend : {Backend::kAuto, Backend::kEager}) {
          INFO("map " << n << (biased ? ", alibi" : "") << (wide ? ", wide q and k" : "")
                      << ", backend " << static_cast<int>(backend));
          ctx.position_bias = biased ? &alibi : nullptr;
          const auto call = layer_call(backend, maps[n]);
          const bool mixes = n == 6;
          const auto run = [&](const Tensor& queries, const Tensor& keys, const Tensor& values) {
            if (!mixes) return attend(queries, keys, values, call, 0.125);
            const auto mixed = Composition::by_matrix(
                mixing.to(at::promote_types(queries.scalar_type(), at::kFloat)), {}, {});
            return composed_attend(queries, keys, values, mixed, mixed, call, 0.125).out;
          };
          const auto want = run(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble));
          Autocast half(at::kCPU, /*bf16=*/true);
          const auto z = scores(q, k, call, 0.125);
          CHECK(z.scalar_type() == at::kFloat);
          CHECK(error_of(z, scores(q.to(at::kDouble), k.to(at::kDouble), call, 0.125)) < 1e-6);
          const auto type = wide ? at::kFloat : at::kBFloat16;
          const auto got = run(q.to(type), k.to(type), v);
          CHECK(got.scalar_type() == at::kBFloat16);
          // What a sink leaves of the outputs is rounded once more.
          CHECK(error_of(got, want) < (n == 1 ? 1.7 : 1.5) * fused);
        }
}

TEST_CASE("half types tell all distances of ALiBi apart", "[laws][precision]") {
  const auto wide = Alibi(8, at::kFloat).by_distance(-600, 0);
  const auto half = Alibi(8, at::TensorOptions(at::kBFloat16)).by_distance(-600, 0);
  CHECK(half.equal(wide));
  for (int64_t h = 0; h < 8; ++h) CHECK(std::get<0>(at::_unique(half[h])).numel() == 601);
}

TEST_CASE("scores that are no numbers end in rows that are none, in every kind and path",
          "[laws][precision]") {
  for_every_kind([](const Subject& s) {
    torch::manual_seed(4);
    const int64_t lost = s.traits.causal ? 3 : 0;
    for (const double bad : {kNan, std::numeric_limits<double>::infinity()})
      for (const int64_t tokens : {int64_t{1}, T})  // one, or all
        for (const auto backend :
             {Backend::kAuto, Backend::kEager, Backend::kSdpa, Backend::kFlash, Backend::kRows}) {
          const auto type = std::isnan(bad) ? at::kDouble : at::kFloat;
          INFO(bad << " in " << tokens << " tokens, backend " << static_cast<int>(backend));
          const auto heads = s.make(s.shape);
          heads->to(type);
          auto x = at::randn({B, T, 20}, type);
          const int64_t first = tokens == T ? 0 : lost;
          x.narrow(1, first, tokens == T ? T : 1).fill_(bad);
          HeadProbe probe;
          probe.statistics = probe.maps = true;
          auto ctx = s.natural();
          ctx.backend = backend;
          ctx.observer = &probe;
          try {
            const auto y = heads->forward(x, ctx).y;
            CHECK(y.narrow(1, first, T - first).isnan().any(-1).all().item<bool>());
          } catch (const BackendError&) {
            CHECK(backend != Backend::kAuto);
            CHECK(backend != Backend::kEager);
          }
        }
  });
}

TEST_CASE("a bias of -infinity hides a key as a mask does, in every kind and path",
          "[laws][precision]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.biases || !s.masks_pairs()) {
      SUCCEED("takes no bias");
      return;
    }
    torch::manual_seed(5);
    auto hidden = at::rand({B, 4, T, T}) < 0.3;
    hidden.select(2, T / 2).fill_(true);  // a row without any key
    const auto x = random({B, T, 20}), bias = random({B, 4, T, T});
    const auto found = [&](Backend backend, bool by_mask) {
      auto ctx = s.natural();
      ctx.backend = backend;
      ctx.bias = by_mask ? bias : bias.masked_fill(hidden, kHiddenScore);
      if (by_mask) ctx.mask.allowed = hidden.logical_not();
      const auto leaf = x.clone().requires_grad_();
      const auto y = s.heads->forward(leaf, ctx).y;
      return std::array{y, torch::autograd::grad({y.square().sum()}, {leaf})[0]};
    };
    const auto want = found(Backend::kEager, /*by_mask=*/true);
    for (const auto backend : {Backend::kAuto, Backend::kEager, Backend::kSdpa, Backend::kRows}) {
      INFO("backend " << static_cast<int>(backend));
      try {
        const auto got = found(backend, /*by_mask=*/false);
        CHECK(relative_difference(got[0], want[0]) < 1e-6);
        CHECK(relative_difference(got[1], want[1]) < 1e-6);
      } catch (const BackendError&) {
        CHECK((backend == Backend::kSdpa || backend == Backend::kRows));
      }
    }
  });
}

TEST_CASE("second derivatives are right or refused", "[laws][precision]") {
  for_every_kind([](const Subject& s) {
    for (const auto backend : {Backend::kAuto, Backend::kEager}) {
      INFO("backend " << static_cast<int>(backend));
      torch::manual_seed(6);
      auto ctx = s.natural();
      ctx.backend = backend;
      const auto x = random({B, T, 20}), along = random({B, T, 20}), cotangent = random(x.sizes());
      const auto gradient = [&](const Tensor& at, bool again) {
        const auto y = s.y(at, ctx);
        return torch::autograd::grad({(y * cotangent).sum()}, {at}, {}, {}, again)[0];
      };
      Tensor second;
      try {
        const auto leaf = x.clone().requires_grad_();
        const auto slope = (gradient(leaf, true) * along).sum();
        second = torch::autograd::grad({slope}, {leaf})[0];
      } catch (const c10::Error& refused) {  // by its own words, or torch's
        const std::string what = refused.what_without_backtrace();
        CHECK((what.find("second derivatives") != std::string::npos ||
               what.find("is not implemented") != std::string::npos));
        continue;
      }
      const double step = 1e-5;
      const auto at = [&](double side) {
        return gradient((x + side * step * along).requires_grad_(), false);
      };
      const auto want = (at(1) - at(-1)) / (2 * step);
      CHECK(relative_difference(second, want) < 1e-5);
    }
  });
}

}  // namespace headlab::test_precision_laws
