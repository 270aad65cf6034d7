// Heads that are composed by blocks of query rows against the path that holds their maps whole:
// values, gradients, and which of the two serves.
#include <torch/csrc/autograd/autograd.h>

#include "tests/catch.h"
#include "tests/dcmha_testing.h"
#include "tests/isa_testing.h"

namespace headlab::test_dcmha_rows {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 9, D = 20, H = 4;

struct Situation {
  const char* name;
  HeadContext ctx;
  Tensor x;
};

// Lengths that fill no block of rows and no vector, masks of every form.
std::vector<Situation> situations(at::ScalarType type) {
  const int64_t length = 37;
  const auto noise = [&](at::IntArrayRef sizes) { return at::randn(sizes, type); };
  const auto x = noise({3, length, D});
  std::vector<Situation> all{{"all keys", {}, x},
                             {"causal", causal(), x},
                             {"causal window", causal(5), x},
                             {"one token", causal(), x.narrow(1, 0, 1)}};
  Situation padded{"padding and a window on both sides", {}, x};
  padded.ctx.mask.window = 4;
  padded.ctx.mask.key_length = at::tensor({length, int64_t{20}, int64_t{1}});
  all.push_back(padded);
  Situation masked{"a mask by head, rows without keys, a bias, gates", causal(), x};
  masked.ctx.mask.allowed = at::rand({3, H, length, length}) < 0.5;
  masked.ctx.mask.allowed.select(2, 7).fill_(false);
  masked.ctx.bias = noise({1, H, length, length});
  masked.ctx.gates = noise({3, H, length});
  all.push_back(masked);
  Situation cross{"a memory with a mask for all heads", {}, x};
  cross.ctx.memory = noise({3, 18, D});
  cross.ctx.mask.allowed = at::rand({3, 1, 1, 18}) < 0.7;
  all.push_back(cross);
  return all;
}

void compare_paths(AttentionHeads& heads, Situation s, double tolerance) {
  s.ctx.backend = Backend::kEager;
  const auto want = gradients(heads, s.x, s.ctx);
  s.ctx.backend = Backend::kAuto;
  const auto got = gradients(heads, s.x, s.ctx);
  INFO(s.name);
  REQUIRE(relative_difference(got.y, want.y) < tolerance);
  for (const auto& [name, gradient] : want.of) {
    INFO("gradient of " << name);
    REQUIRE(relative_difference(got.of.at(name), gradient) < tolerance);
  }
}

}  // namespace

TEST_CASE("by blocks of rows dcmha gives the values and gradients of the maps held whole",
          "[dcmha]") {
  HEADLAB_WITH_EVERY_ISA;
  torch::manual_seed(14);
  for (const auto& options : kDcmhaOptions) {
    INFO(options);
    auto heads = dcmha(options);
    for (const auto& s : situations(at::kDouble)) compare_paths(*heads, s, 1e-11);
    heads->mask_heads({0, 2});
    compare_paths(*heads, situations(at::kDouble)[1], 1e-11);
  }
  // Two threads share the blocks of three examples.
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  compare_paths(*dcmha(", static: true"), situations(at::kDouble)[1], 1e-11);
  at::set_num_threads(threads);
}

TEST_CASE("by blocks of rows one matrix for all pairs gives the values and gradients of whole maps",
          "[talking][mohsa]") {
  HEADLAB_WITH_EVERY_ISA;
  torch::manual_seed(19);
  for (const std::string kind : {"talking", "mohsa"})
    for (const std::string& options :
         {std::string(", pre: true, post: true"), std::string(", pre: true, post: false"),
          std::string(", pre: false, post: true")}) {
      INFO(kind << options);
      const bool grouped = kind == "talking";
      auto heads = make_layer(kind, small_shape(H, grouped ? 2 : H), options);
      for (const auto& s : situations(at::kDouble)) compare_paths(*heads, s, 1e-11);
      heads->mask_heads({0, 2});
      compare_paths(*heads, situations(at::kDouble)[1], 1e-11);
      {
        at::NoGradGuard no_grad;
        for (auto& p : heads->parameters()) p.mul_(0.2);
      }
      heads->to(at::kFloat);
      compare_paths(*heads, situations(at::kFloat)[2], 1e-4);
    }
}

TEST_CASE("a bias behind a mixing needs the maps whole", "[talking]") {
  torch::manual_seed(20);
  auto heads = make_layer("talking", small_shape(), ", mix_bias: true");
  for (const auto& s : situations(at::kDouble)) compare_paths(*heads, s, 1e-11);
}

TEST_CASE("by blocks of rows dcmha is as exact in float32, with many heads and wide ones",
          "[dcmha]") {
  HEADLAB_WITH_EVERY_ISA;
  torch::manual_seed(15);
  HeadShape shape = small_shape(6, 6);
  shape.head_dim = 33;
  auto heads = dcmha(", static: true, rank: 5, qk_norm: true", shape);
  {
    at::NoGradGuard no_grad;
    for (auto& p : heads->parameters()) p.mul_(0.2);
  }
  heads->to(at::kFloat);
  for (const auto& s : situations(at::kFloat)) {
    if (s.ctx.mask.allowed.defined() && s.ctx.mask.allowed.size(1) == H) continue;
    compare_paths(*heads, s, 1e-4);
  }
}

TEST_CASE("dcmha drops weights, and holds its maps whole where a bias learns", "[dcmha]") {
  torch::manual_seed(16);
  auto shape = small_shape();
  shape.dropout = 0.5;
  auto heads = dcmha("", shape);
  const auto x = random({B, T, D});
  const auto plain = heads->forward(x, causal()).y;
  heads->train();
  REQUIRE(difference(heads->forward(x, causal()).y, plain) > 1e-6);
  heads->eval();
  auto ctx = causal();
  ctx.bias = random({1, H, T, T}).requires_grad_();
  heads->forward(x, ctx).y.sum().backward();
  REQUIRE(ctx.bias.grad().abs().max().item<double>() > 1e-6);
  const Alibi alibi(H, at::kDouble);
  ctx = causal();
  ctx.position_bias = &alibi;
  compare_paths(*heads, {"alibi", ctx, x}, 1e-11);
  ctx.backend = Backend::kSdpa;
  REQUIRE_THROWS_WITH(heads->forward(x, ctx), Catch::Contains("composed"));
}

TEST_CASE("second derivatives of dcmha are refused by blocks of rows, not silently wrong",
          "[dcmha]") {
  torch::manual_seed(18);
  auto heads = dcmha();
  const auto x = random({B, T, D}).requires_grad_();
  auto slope = [&](Backend backend) {
    auto ctx = causal();
    ctx.backend = backend;
    const auto y = heads->forward(x, ctx).y.square().sum();
    return torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  };
  REQUIRE_THROWS_WITH(slope(Backend::kAuto), Catch::Contains("backend eager only"));
  slope(Backend::kEager).sum().backward();
  REQUIRE(x.grad().abs().max().item<double>() > 0);
}

}  // namespace headlab::test_dcmha_rows
