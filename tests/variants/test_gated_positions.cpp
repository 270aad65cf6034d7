// Gates that tokens set at the other positions of a layer: reductions, sharing, decoding, slices,
// refusals.
#include <fmt/format.h>

#include "core/errors.h"
#include "tests/layers_testing.h"

namespace headlab::test_gated_positions {
using namespace testing;

namespace {

const std::vector<std::string> kPositions = {"output", "value", "key", "query", "layer"};

Layer gated(const std::string& options, const HeadShape& shape = small_shape(4, 2)) {
  return make_layer("gated", shape, ", gate: sigmoid, " + options);
}
Layer inner_of(const Layer& layer, const HeadShape& shape = small_shape(4, 2)) {
  const auto inner = make_layer("mha", shape);
  for (const auto& p : inner->named_parameters())
    set(inner, p.key(), parameter(layer, "inner." + p.key()));
  return inner;
}
Tensor input() { return random({kBatch, kTokens, 20}); }

}  // namespace

TEST_CASE("gates that see nothing scale outputs and values alike, and queries and keys alike",
          "[gated]") {
  const auto x = input();
  for (const std::string position : {"output", "value"}) {
    INFO(position);
    const auto layer = gated("position: " + position);
    set(layer, "gate.weight", at::zeros_like(parameter(layer, "gate.weight")));
    auto bias = random({position == "value" ? 2 : 4});
    set(layer, "gate.bias", bias);
    auto ctx = causal();
    auto of_heads = position == "value" ? bias.repeat_interleave(2) : bias;
    ctx.gates = at::sigmoid(of_heads).view({1, 4, 1});
    REQUIRE(difference(layer->forward(x, causal()).y, inner_of(layer)->forward(x, ctx).y) < 1e-12);
  }
  for (const std::string position : {"query", "key"}) {
    INFO(position);
    const auto layer = gated("position: " + position);
    set(layer, "gate.weight", at::zeros_like(parameter(layer, "gate.weight")));
    set(layer, "gate.bias", at::full({position == "key" ? 2 : 4}, 0.7, at::kDouble));
    const auto scaled = make_layer("mha", small_shape(4, 2));
    copy_weights(scaled, inner_of(layer));
    at::NoGradGuard no_grad;
    parameter(scaled, "q.weight").mul_(at::sigmoid(at::tensor(0.7, at::kDouble)));
    REQUIRE(difference(layer->forward(x, causal()).y, scaled->forward(x, causal()).y) < 1e-12);
  }
}

TEST_CASE("the layer's gate is of each feature that the layer says", "[gated]") {
  const auto layer = gated("position: layer, granularity: element");
  const auto x = input();
  const auto g =
      at::sigmoid(at::linear(x, parameter(layer, "gate.weight"), parameter(layer, "gate.bias")));
  REQUIRE(difference(layer->forward(x, causal()).y, g * inner_of(layer)->forward(x, causal()).y) <
          1e-12);
  const auto added = gated("position: layer, granularity: element, additive: true");
  copy_weights(added, layer);
  REQUIRE(difference(added->forward(x, causal()).y, g + inner_of(layer)->forward(x, causal()).y) <
          1e-12);
}

TEST_CASE("an added gate of a head that the context silences says nothing", "[gated]") {
  const auto layer = gated("additive: true, activation: silu, granularity: element");
  auto silent = causal();
  silent.gates = at::zeros({1, 4, 1}, at::kDouble);
  REQUIRE(layer->forward(input(), silent).y.abs().max().item<double>() == 0);
  auto blind = causal();  // but it speaks where no key may be seen
  blind.mask.allowed = at::zeros({kTokens, kTokens}, at::kBool);
  REQUIRE(layer->forward(input(), blind).y.abs().max().item<double>() > 0.01);
}

TEST_CASE("heads with equal rows share their gate, however it is written", "[gated]") {
  const auto x = input();
  for (const auto& position : {"output", "value", "key", "query"})
    for (const auto& granularity : {"head", "element"}) {
      INFO(position << " " << granularity);
      const auto options = std::string("position: ") + position + ", granularity: " + granularity;
      const auto one = gated(options + ", shared: weight"),
                 mean = gated(options + ", shared: scores"), own = gated(options);
      const auto rows =
          parameter(own, "gate.weight").size(0) / parameter(one, "gate.weight").size(0);
      for (const auto& other : {mean, own}) {
        copy_weights(other, one);
        for (const char* name : {"gate.weight", "gate.bias"}) {
          const auto of_one = parameter(one, name);
          set(other, name, at::cat(std::vector<Tensor>(rows, of_one)));
        }
        REQUIRE(difference(other->forward(x, causal()).y, one->forward(x, causal()).y) < 1e-12);
      }
    }
}

TEST_CASE("gates read the first features of the input where they are told to", "[gated]") {
  const auto layer = gated("position: query, input_dims: 5");
  REQUIRE(parameter(layer, "gate.weight").sizes() == at::IntArrayRef({4, 5}));
  auto x = input();
  const auto gates = layer->forward(x, causal()).gates;
  x.narrow(2, 5, 15).add_(1);
  REQUIRE(difference(layer->forward(x, causal()).gates, gates) == 0);
}

TEST_CASE("gates at any position decode, and go with their heads", "[gated]") {
  for (const auto& position : kPositions)
    for (const std::string shared : {"none", "scores", "weight"}) {
      if (position == "layer" && shared != "none") continue;
      const auto layer =
          gated(fmt::format("granularity: element, position: {}, shared: {}", position, shared));
      INFO(position << " " << shared);
      const auto x = input();
      const auto whole = layer->forward(x, causal()).y;
      LayerCache cache;
      auto ctx = causal();
      ctx.cache = &cache;
      for (int64_t t = 0; t < kTokens; ++t)
        REQUIRE(difference(layer->forward(x.narrow(1, t, 1), ctx).y, whole.narrow(1, t, 1)) <
                1e-12);
      for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {0, 1, 2}}) {
        layer->mask_heads(gone);
        REQUIRE(difference(layer->slice()->forward(x, causal()).y, layer->forward(x, causal()).y) <
                1e-12);
      }
      layer->mask_heads({});
    }
}

TEST_CASE("a gate's statistic is that of the head it concerns", "[gated]") {
  const auto x = input();
  const auto layer = gated("position: value");
  const auto g =
      at::sigmoid(at::linear(x, parameter(layer, "gate.weight"), parameter(layer, "gate.bias")))
          .mean(at::IntArrayRef({0, 1}));
  const auto seen = statistics_of(*layer, x, causal());
  for (int64_t h = 0; h < 4; ++h) REQUIRE(seen.at("gate")[h] == Approx(g[h / 2].item<double>()));
}

TEST_CASE("positions that do not fit are refused", "[gated]") {
  const auto refuses = [](const std::string& options, const std::string& what) {
    INFO(options);
    REQUIRE_THROWS_WITH(make_layer("gated", small_shape(), options), Catch::Contains(what));
  };
  refuses(", position: value", "needs gate: sigmoid");
  refuses(", shared: scores", "needs gate: sigmoid");
  refuses(", input_dims: 3", "needs gate: sigmoid");
  refuses(", gate: sigmoid, position: layer", "choose element");
  refuses(", gate: sigmoid, position: layer, granularity: element, shared: weight", "no heads");
  refuses(", gate: sigmoid, position: key, inner: mla", "no plain projections");
  refuses(", gate: sigmoid, input_dims: 21", "must be at most 20");
}

}  // namespace headlab::test_gated_positions
