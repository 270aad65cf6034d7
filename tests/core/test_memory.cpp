// Kinds never hold their maps while they train.
#include <algorithm>

#include "experiments/benchmarks/allocations.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_memory {
using namespace testing;

namespace {

constexpr int64_t B = 1, T = 2048, H = 2;
constexpr int64_t kMap = B * H * T * T * sizeof(float);

Allocations training_memory(const std::string& kind, Backend backend,
                            const PositionBias* position_bias = nullptr,
                            const std::string& options = "", double dropout = 0) {
  HeadShape shape;
  shape.dropout = dropout;
  shape.d_model = 16, shape.heads = shape.kv_heads = H, shape.head_dim = 8;
  shape.context = T;
  const auto layer = make_layer(kind, shape, options);
  layer->to(at::kFloat);
  layer->train();
  auto x = at::randn({B, T, 16}).requires_grad_();
  HeadContext ctx;
  ctx.mask.causal = layer->traits().causal;
  ctx.backend = backend;
  ctx.position_bias = position_bias;
  return allocations_of([&] {
    const auto out = layer->forward(x, ctx);
    auto loss = out.y.sum();
    for (const auto& aux : out.aux) loss = loss + aux.value;
    loss.backward();
  });
}

}  // namespace

// mta convolves its map; reattention with norm by batch takes means over whole maps.
TEST_CASE("training a kind allocates no map of all heads, queries and keys", "[memory]") {
  for (const auto& kind : head_names()) {
    INFO(kind);
    if (kind == "mta") continue;
    REQUIRE(training_memory(kind, Backend::kAuto).largest < kMap);
  }
  REQUIRE(training_memory("mha", Backend::kEager).largest == kMap);
  REQUIRE(training_memory("mta", Backend::kAuto, nullptr, ", pre_kernel: [3, 3]").largest >= kMap);
}

TEST_CASE("neither dropout nor a learned map wants the map held", "[memory]") {
  for (const char* kind :
       {"mha", "entmax", "sigmoid", "softpick", "sink", "dcmha", "talking", "stickbreaking"}) {
    INFO(kind);
    const std::string options = kind == std::string("entmax") ? ", learn_alpha: true" : "";
    REQUIRE(training_memory(kind, Backend::kAuto, nullptr, options, 0.2).largest < kMap);
  }
}

TEST_CASE("training composed heads allocates no such map either", "[memory]") {
  for (const char* kind : {"dcmha", "talking", "mohsa"}) {
    INFO(kind);
    const auto memory = training_memory(kind, Backend::kAuto, nullptr, ", pre: true, post: true");
    REQUIRE(memory.largest < kMap);
  }
  REQUIRE(training_memory("talking", Backend::kEager).largest >= kMap);
}

TEST_CASE("biases by distance are trained with without a bias of every pair", "[memory]") {
  const int64_t pairs = H * T * T * static_cast<int64_t>(sizeof(float));  // [H,T,S]
  const Alibi alibi(H, at::kFloat);
  const auto weight = at::zeros({32, H}).requires_grad_();
  const RelativeBias relative(weight, 128, /*causal=*/true);
  for (const PositionBias* bias :
       {static_cast<const PositionBias*>(&alibi), static_cast<const PositionBias*>(&relative)})
    REQUIRE(training_memory("mha", Backend::kAuto, bias).largest < pairs);
  REQUIRE(weight.grad().abs().sum().item<double>() > 0);
  REQUIRE(training_memory("dcmha", Backend::kAuto, &alibi).largest < pairs);
  REQUIRE(training_memory("mha", Backend::kEager, &alibi).largest >= pairs);
}

}  // namespace headlab::test_memory
