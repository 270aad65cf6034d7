// That a GPU computes what the CPU computes, for every registered kind of heads.
#include <torch/cuda.h>

#include <cmath>

#include "core/errors.h"
#include "experiments/training/update.h"
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_gpu_laws {
using namespace testing;

namespace {

constexpr double kClose = 1e-10;  // float64, relative: sums come in another order

// Runs `law` for every kind where there is a GPU.
template <class Law>
void on_a_gpu(Law law) {
  if (!torch::cuda::is_available()) return testing::skip("no GPU here, or none built for");
  for_every_kind(law);
}

Tensor on(const at::Device& device, const Tensor& t) { return t.defined() ? t.to(device) : t; }

// What a pass forward and back gives, by name, on the CPU.
std::map<std::string, Tensor> computed(AttentionHeads& heads, const Tensor& x,
                                       const Tensor& cotangent, HeadContext ctx,
                                       const at::Device& device) {
  for (Tensor* t : {&ctx.mask.key_length, &ctx.mask.query_length, &ctx.mask.allowed, &ctx.bias,
                    &ctx.memory, &ctx.gates})
    *t = on(device, *t);
  heads.to(device);
  const auto input = x.to(device).clone().requires_grad_();
  const auto out = heads.forward(input, ctx);
  auto loss = (out.y * on(device, cotangent)).sum();
  std::map<std::string, Tensor> results{{"y", out.y.detach()}};
  for (const auto& aux : out.aux) {
    loss = loss + aux.value;
    results["aux " + aux.name] = aux.value.detach();
  }
  loss.backward();
  results["gradient of x"] = input.grad();
  for (const auto& p : heads.named_parameters())
    if (p.value().grad().defined()) results["gradient of " + p.key()] = p.value().grad();
  for (auto& [name, value] : results) {
    REQUIRE(value.device().type() == device.type());
    value = value.to(at::kCPU);
  }
  return results;
}

// Whether its training draws, which a GPU does by a generator of its own.
bool draws(const Subject& s, const HeadContext& ctx) {
  const auto heads = s.make(s.shape);
  heads->train();
  const auto x = random({B, T, 20});
  auto later = ctx;
  later.rng.step += 1;
  return !at::equal(heads->forward(x, ctx).y, heads->forward(x, later).y);
}

// The same layer with the same context on both.
void compare(const Subject& s, const HeadContext& ctx, bool train = false) {
  const auto x = random({B, T, 20}), cotangent = random({B, T, 20});
  const auto one = s.make(s.shape), other = s.make(s.shape);
  one->train(train), other->train(train);
  const auto want = computed(*one, x, cotangent, ctx, at::kCPU);
  const auto got = computed(*other, x, cotangent, ctx, at::kCUDA);
  REQUIRE(got.size() == want.size());
  for (const auto& [name, value] : want) {
    INFO(name);
    REQUIRE(relative_difference(got.at(name), value) < kClose);
  }
}

}  // namespace

TEST_CASE("outputs, losses and gradients are the same on a GPU", "[laws][gpu]") {
  on_a_gpu([](const Subject& s) {
    for (const auto backend : {Backend::kAuto, Backend::kEager}) {
      INFO("backend " << static_cast<int>(backend));
      auto ctx = s.natural();
      ctx.backend = backend;
      compare(s, ctx);
      if (!draws(s, ctx)) compare(s, ctx, /*train=*/true);
      const Rotary rotary;
      if (s.traits.rotary) ctx.rotary = &rotary;
      if (s.traits.biases) ctx.bias = random({B, 1, T, T});
      if (s.masks_pairs()) ctx.mask.allowed = at::rand({B, 4, T, T}) < 0.7;
      compare(s, ctx);
      ctx = s.widest();
      ctx.backend = backend;
      ctx.mask.key_length = ctx.mask.query_length = at::tensor({T, int64_t{4}});
      ctx.gates = random({B, 4, T});
      compare(s, ctx);
    }
    if (s.traits.causal && s.traits.windows) compare(s, causal(3));
    if (!s.traits.cross) return;
    HeadContext ctx;
    ctx.memory = random({B, 5, 20});
    ctx.mask.key_length = at::tensor({int64_t{5}, int64_t{3}});
    compare(s, ctx);
  });
}

// No path on a GPU takes it unless it is asked for.
TEST_CASE("blocks of rows on a GPU give the numbers of the map", "[laws][gpu]") {
  on_a_gpu([](const Subject& s) {
    auto ctx = s.natural();
    ctx.backend = Backend::kRows;
    try {
      const auto heads = s.make(s.shape);
      heads->forward(random({B, T, 20}), ctx);
    } catch (const BackendError&) {
      return;  // this kind has another way
    }
    compare(s, ctx);
    ctx = s.widest();
    ctx.backend = Backend::kRows;
    ctx.mask.key_length = at::tensor({T, int64_t{4}});
    compare(s, ctx);
  });
}

// Of the layer behind another one, with which some statistics compare it.
struct Observed {
  std::map<std::string, std::vector<double>> values;
  Tensor map;  // on the CPU; undefined where the kind has none over tokens

  Observed(const Subject& s, const Tensor& x, const at::Device& device) {
    HeadProbe probe;
    probe.statistics = probe.maps = probe.matches = true;
    probe.js_stride = 2;
    probe.tokens = at::arange(B * T, at::kLong).remainder(5).view({B, T}).to(device);
    probe.classes = at::arange(B * T, at::kByte).remainder(4).view({B, T}).to(device);
    auto before = s.shape;
    before.layer -= 1;
    Tensor plain, watched;
    for (const auto& shape : {before, s.shape}) {
      const auto heads = s.make(shape);
      heads->to(device);
      auto ctx = s.natural();
      plain = heads->forward(x.to(device), ctx).y;
      ctx.observer = &probe;
      watched = heads->forward(x.to(device), ctx).y;
    }
    REQUIRE(at::equal(watched, plain));
    values = probe.values(s.shape.layer);
    if (s.weighs_tokens()) map = probe.layer_maps().at(s.shape.layer).to(at::kCPU);
  }
};

TEST_CASE("statistics and maps are the same on a GPU, and change no output", "[laws][gpu]") {
  on_a_gpu([](const Subject& s) {
    const auto x = random({B, T, 20});
    const Observed want(s, x, at::kCPU), got(s, x, at::kCUDA);
    if (s.weighs_tokens()) REQUIRE(relative_difference(got.map, want.map) < kClose);
    REQUIRE(got.values.size() == want.values.size());
    for (const auto& [name, numbers] : want.values) {
      const auto& of_gpu = got.values.at(name);
      REQUIRE(of_gpu.size() == numbers.size());
      for (size_t n = 0; n < numbers.size(); ++n) {
        INFO(name << " " << n << ": " << of_gpu[n] << " for " << numbers[n]);
        REQUIRE(std::isfinite(of_gpu[n]) == std::isfinite(numbers[n]));
        if (std::isfinite(numbers[n]))
          REQUIRE(std::abs(of_gpu[n] - numbers[n]) < 1e-9 * (1 + std::abs(numbers[n])));
      }
    }
  });
}

TEST_CASE("decoding and sliced heads are the same on a GPU", "[laws][gpu]") {
  on_a_gpu([](const Subject& s) {
    at::NoGradGuard no_grad;
    const auto x = random({B, 12, 20}), there = x.to(at::kCUDA);
    const auto want = s.y(x, s.natural());
    s.heads->mask_heads({1});
    const auto sliced = s.heads->slice();
    const auto want_sliced = sliced->forward(x, s.natural()).y;
    sliced->to(at::kCUDA);
    const auto got_sliced = sliced->forward(there, s.natural()).y.to(at::kCPU);
    REQUIRE(relative_difference(got_sliced, want_sliced) < kClose);
    if (!s.traits.decodes) return not_promised();
    const auto heads = s.make(s.shape);
    heads->to(at::kCUDA);
    LayerCache cache;
    auto ctx = s.natural();
    ctx.cache = &cache;
    int64_t at = 0;
    for (int64_t chunk : {5, 1, 6}) {
      const auto y = heads->forward(there.narrow(1, at, chunk), ctx).y.to(at::kCPU);
      REQUIRE(relative_difference(y, want.narrow(1, at, chunk)) < kClose);
      at += chunk;
    }
  });
}

TEST_CASE("half precision on a GPU is as near to float32 as torch's fused attention",
          "[laws][gpu][precision]") {
  const auto x = random({B, T, 20}).to(at::kBFloat16).to(at::kFloat);
  const auto found = [&](const Subject& s, const std::string& options, Backend backend) {
    const auto heads = rounded_layer(s, options);
    auto ctx = s.natural();
    const auto want = heads->forward(x, ctx).y;
    heads->to(at::kCUDA);
    ctx.backend = backend;
    Autocast half(at::kCUDA, /*bf16=*/true);
    return error_of(heads->forward(x.to(at::kCUDA), ctx).y, want);
  };
  double fused = 0;
  on_a_gpu([&](const Subject& s) {
    if (fused == 0) fused = found(Subject("mha"), "", Backend::kSdpa);
    for (const auto& options : norms_in_laws(s))
      for (const auto backend : {Backend::kAuto, Backend::kEager}) {
        INFO(options << ", backend " << static_cast<int>(backend));
        CHECK(found(s, options, backend) < 8 * fused);
      }
  });
}

TEST_CASE("scores that are no numbers end in rows that are none on a GPU", "[laws][gpu]") {
  on_a_gpu([](const Subject& s) {
    for (const auto backend : {Backend::kAuto, Backend::kEager, Backend::kSdpa})
      for (const auto type : {at::kFloat, at::kBFloat16})
        for (const bool all : {false, true}) {
          INFO("backend " << static_cast<int>(backend) << (all ? ", all tokens" : ", one token"));
          const auto heads = s.make(s.shape);
          heads->to(at::kCUDA, type);
          const auto x = random({B, T, 20});
          const int64_t first = s.traits.causal && !all ? 3 : 0;
          x.narrow(1, first, all ? T : 1).fill_(std::nan(""));
          auto ctx = s.natural();
          ctx.backend = backend;
          try {
            const auto y = heads->forward(x.to(at::kCUDA, type), ctx).y;
            CHECK(y.narrow(1, first, T - first).isnan().any(-1).all().item<bool>());
          } catch (const BackendError&) {
            CHECK(backend == Backend::kSdpa);
          }
        }
  });
}

TEST_CASE("dropout on a GPU is a function of the counter", "[laws][gpu]") {
  on_a_gpu([](const Subject& s) {
    auto shape = s.shape;
    shape.dropout = 0.3;
    const auto heads = s.make(shape);
    heads->to(at::kCUDA);
    heads->train();
    const auto x = random({B, T, 20}).to(at::kCUDA);
    const auto at_step = [&](uint64_t step) {
      auto ctx = s.natural();
      ctx.rng = {.seed = 5, .step = step};
      return heads->forward(x, ctx).y;
    };
    REQUIRE(at::equal(at_step(1), at_step(1)));
    REQUIRE_FALSE(at::equal(at_step(1), at_step(2)));
  });
}

}  // namespace headlab::test_gpu_laws
