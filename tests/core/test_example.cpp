// README's example of a kind of heads (example_head.cpp): this program has no other kind, and runs
// the laws of test_laws.cpp on it.
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_example {
using namespace testing;

namespace {

Tensor parameter(const AttentionHeads& layer, const std::string& name) {
  return layer.named_parameters()[name];
}

}  // namespace

TEST_CASE("README's example registers itself", "[example]") {
  REQUIRE(head_names() == std::vector<std::string>{"temperature"});
  REQUIRE(head_kind("temperature").summary == "each head learns how sharp it is");
}

TEST_CASE("README's example at temperature 1 is plain attention", "[example]") {
  const auto layer = make_layer("temperature", small_shape());
  at::NoGradGuard no_grad;
  parameter(*layer, "log_tau").zero_();
  const auto x = random({2, 7, 20});
  auto heads = [&](const char* name) {
    return at::linear(x, parameter(*layer, name)).view({2, 7, 4, 6}).transpose(1, 2);
  };
  const auto plain = at::scaled_dot_product_attention(heads("q.weight"), heads("k.weight"),
                                                      heads("v.weight"), {}, 0, true);
  const auto joined = plain.transpose(1, 2).reshape({2, 7, 24});
  const auto expected = at::linear(joined, parameter(*layer, "o.weight"));
  REQUIRE(difference(layer->forward(x, causal()).y, expected) < 1e-12);
}

TEST_CASE("README's example attends the more evenly the hotter it is", "[example]") {
  const auto layer = make_layer("temperature", small_shape());
  at::NoGradGuard no_grad;
  const auto x = random({2, 7, 20});
  auto entropies = [&](double tau) {
    parameter(*layer, "log_tau").fill_(std::log(tau));
    HeadProbe probe;
    probe.statistics = true;
    auto ctx = causal();
    ctx.observer = &probe;
    layer->forward(x, ctx);
    return probe.values(small_shape().layer).at("entropy");
  };
  const auto cold = entropies(0.1), warm = entropies(1), hot = entropies(1e6);
  const double uniform = std::lgamma(8.) / 7;  // mean of ln 1 .. ln 7
  for (int h = 0; h < 4; ++h) {
    INFO("head " << h);
    REQUIRE(cold[h] < warm[h]);
    REQUIRE(warm[h] < hot[h]);
    REQUIRE(hot[h] == Approx(uniform).epsilon(1e-6));
  }
}

}  // namespace headlab::test_example
