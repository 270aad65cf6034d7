// Layers that are timed: their counts, and why a pass cannot be.
#include <cmath>

#include "core/head_kinds.h"
#include "core/torch.h"
#include "experiments/benchmarks/bench_layer.h"
#include "tests/catch.h"

namespace headlab::test_bench_layer {
namespace {

using Catch::Contains;

constexpr int64_t B = 3, T = 10, D = 24, H = 4;

BenchSetting setting(const std::string& attention = "causal") {
  BenchSetting setting;
  setting.shape = {.batch = B, .tokens = T, .width = D, .heads = H};
  setting.attention = attention;
  return setting;
}

BenchLayer layer_of(const std::string& kind, Backend backend = Backend::kAuto,
                    const std::string& attention = "causal") {
  return {KindBlock(head_registry(), kind), backend, setting(attention)};
}

TEST_CASE("plain heads count their FLOPs as a person does") {
  auto causal = layer_of("mha"), both_ways = layer_of("mha", Backend::kAuto, "bidirectional");
  const double projections = 2.0 * B * T * D * D * 4, pairs = 2.0 * B * T * T * D * 2;
  CHECK(causal.flops(BenchPass::kForward) == projections + pairs / 2);
  CHECK(both_ways.flops(BenchPass::kForward) == projections + pairs);
  CHECK(causal.flops(BenchPass::kBoth) == 3 * causal.flops(BenchPass::kForward));
  CHECK(std::isnan(causal.flops(BenchPass::kDecode)));
}

TEST_CASE("the memory of a pass is what tensors hold at once, and what it moves is more") {
  auto layer = layer_of("mha", Backend::kEager);
  const auto map = static_cast<int64_t>(B * H * T * T * sizeof(float));
  const auto& forward = layer.allocations(BenchPass::kForward);
  CHECK(forward.peak >= map);
  CHECK(forward.total >= forward.peak);
  const auto& both = layer.allocations(BenchPass::kBoth);
  CHECK(both.peak > forward.peak);
  const auto weights = static_cast<double>(4 * D * D * sizeof(float));
  const auto input = static_cast<double>(B * T * D * sizeof(float));
  CHECK(layer.moved(BenchPass::kBoth) == weights + input + 2 * static_cast<double>(both.total));
}

TEST_CASE("every pass of plain heads is there, and no gradient is left behind") {
  auto layer = layer_of("mha");
  for (const auto pass :
       {BenchPass::kForward, BenchPass::kBoth, BenchPass::kStatistics, BenchPass::kDecode}) {
    INFO(name_of(pass));
    CHECK(layer.reason(pass).empty());
    CHECK(layer.turn(pass) > 0);
  }
  const auto tensors = layer.tensors();
  CHECK(tensors.at("y").sizes() == at::IntArrayRef({B, T, D}));
  for (const char* name : {"x", "q.weight", "k.weight", "v.weight", "o.weight"})
    CHECK(tensors.count(name) == 1);
}

TEST_CASE("what a kind or a path cannot do has its reason") {
  CHECK_THAT(layer_of("dcmha", Backend::kSdpa).reason(BenchPass::kForward),
             Contains("not for heads that are composed"));
  CHECK_THAT(layer_of("mha", Backend::kAuto, "cross").reason(BenchPass::kDecode),
             Contains("--attention causal"));
  CHECK_THAT(layer_of("sigmoid").reason(BenchPass::kDecode), Contains("do not decode"));
  CHECK_THROWS_WITH(layer_of("linformer"), Contains("'linformer' heads cannot be causal"));
  CHECK_THROWS_WITH(layer_of("bigbird", Backend::kAuto, "cross"),
                    Contains("have no cross-attention"));
}

}  // namespace
}  // namespace headlab::test_bench_layer
