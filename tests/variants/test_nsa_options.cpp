// What native sparse attention reports, how it begins, and what it refuses.
#include "tests/choice_testing.h"

namespace headlab::test_nsa_options {
using namespace testing;

namespace {

const std::string kEven =
    ", block: 4, compress_block: 4, stride: 2, selected: 2, first_blocks: 0, local_blocks: 1, "
    "window_tokens: 5";

}  // namespace

TEST_CASE("nsa reports its gates, and the maps of the selected branch and of the window", "[nsa]") {
  const auto layer = make_layer("nsa", small_shape(4, 2), kEven + ", gate_bias: true");
  const auto x = random({2, 24, 20});
  const auto mha = make_layer("mha", small_shape(4, 2));
  copy_weights(mha, layer);
  const auto got = statistics_of(*layer, x, causal()), window = statistics_of(*mha, x, causal(5));
  const auto g = layer->forward(x, causal()).gates;
  for (int64_t h = 0; h < 4; ++h) {
    for (const char* name : {"entropy", "lse", "mean_distance", "max_weight"})
      REQUIRE(got.at(name + std::string("_window"))[h] == Approx(window.at(name)[h]));
    REQUIRE(got.at("gate_selected")[h] ==
            Approx(g.select(2, h).select(2, 1).mean().item<double>()));
  }
}

TEST_CASE("nsa begins with open halves of its gates and means of keys", "[nsa]") {
  const auto layer = fresh("nsa", small_shape(4, 2), ", gate_bias: true, compress: weighted");
  REQUIRE(parameter(layer, "gate.bias").abs().max().item<double>() == 0);
  REQUIRE(parameter(layer, "gate.weight").std().item<double>() == Approx(0.02).epsilon(0.2));
  const auto weights = parameter(layer, "compress.k");
  REQUIRE(difference(weights, at::full({2, 32}, 1. / 32)) < 1e-7);
  REQUIRE(parameter(layer, "compress.k_positions").abs().max().item<double>() == 0);
}

TEST_CASE("nsa refuses sizes that do not fit, and what its blocks cannot do", "[nsa]") {
  require_refused("nsa", ", compress_block: 128", {.causal = true}, "choose at most 64");
  require_refused("nsa", ", stride: 12", {.causal = true}, "must divide compress_block (32)");
  require_refused("nsa", ", selected: 2", {.causal = true}, "choose at least 3");
  require_refused("nsa", ", compress_hidden: 8", {.causal = true}, "no hidden features");
  require_refused("nsa", "", {.bidirectional = true}, "'nsa' heads must be causal");
  require_refused("nsa", "", {.causal = true, .window = true}, "'nsa' heads know no window");
  require_refused("nsa", "", {.causal = true, .bias = true}, "know no bias on their scores");
  require_refused("nsa", "", {.cross = true}, "have no cross-attention");
}

}  // namespace headlab::test_nsa_options
