// Differential heads: the formula written out, both versions, reductions, statistics.
#include "tests/layers_testing.h"

namespace headlab::test_differential {
using namespace testing;

namespace {

double lambda_of(const Layer& layer) {
  const auto product = [&](const char* q, const char* k) {
    return std::exp((parameter(layer, q) * parameter(layer, k)).sum().item<double>());
  };
  return product("lambda_q1", "lambda_k1") - product("lambda_q2", "lambda_k2") + 0.8 -
         0.6 * std::exp(-0.3);  // layer 1
}

// softmax of the queries `which` (0, 1) of every head; version 1 has as many keys.
Tensor softmax_of(const Layer& layer, const Tensor& x, int64_t which, bool halves) {
  const auto part = [&](const char* name, bool cut) {
    const auto all = split_heads(at::linear(x, parameter(layer, name)), 4);
    const int64_t width = cut ? all.size(3) / 2 : all.size(3);
    return all.narrow(3, cut ? which * width : 0, width);
  };
  const auto q = part("q.weight", true), k = part("k.weight", halves);
  const auto z = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  return masked_softmax(z, allowed_keys(causal().mask, x.size(1), x.size(1), at::kCPU));
}

}  // namespace

TEST_CASE("version 1 subtracts halves, norms what a head says, and scales it", "[differential]") {
  const auto layer = make_layer("differential", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto a = softmax_of(layer, x, 0, true) - lambda_of(layer) * softmax_of(layer, x, 1, true);
  REQUIRE(difference(map_of(*layer, x, causal()), a) < 1e-12);
  auto o = at::matmul(a, split_heads(at::linear(x, parameter(layer, "v.weight")), 4));
  o = o * (o.square().mean(-1, true) + 1e-5).rsqrt() * parameter(layer, "norm.weight") *
      (1 - (0.8 - 0.6 * std::exp(-0.3)));
  const auto y = at::linear(o.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-12);
}

TEST_CASE("version 2 has a lambda of each token and head, and no norm", "[differential]") {
  const auto layer = make_layer("differential", small_shape(), ", version: 2");
  const auto x = random({kBatch, kTokens, 20});
  const auto lambda =
      at::sigmoid(at::linear(x, parameter(layer, "lambda.weight"))).transpose(1, 2).unsqueeze(3);
  const auto a = softmax_of(layer, x, 0, false) - lambda * softmax_of(layer, x, 1, false);
  REQUIRE(difference(map_of(*layer, x, causal()), a) < 1e-12);
  REQUIRE(difference(a.sum(-1), (1 - lambda).squeeze(3)) < 1e-12);
  set(layer, "lambda.weight", at::zeros({4, 20}));
  const auto half = map_of(*layer, x, causal());
  REQUIRE(difference(half.sum(-1), at::full({kBatch, 4, kTokens}, 0.5, at::kDouble)) < 1e-12);
}

TEST_CASE("equal halves leave a softmax, of which behind the norm only the sign counts",
          "[differential]") {
  const auto layer = make_layer("differential", small_shape());
  for (const char* name : {"q.weight", "k.weight"}) {
    const auto w = parameter(layer, name).detach().clone().view({4, 2, 3, 20});
    w.select(1, 1).copy_(w.select(1, 0));
    set(layer, name, w.view({24, 20}));
  }
  const auto x = random({kBatch, kTokens, 20});
  const auto p = softmax_of(layer, x, 0, true);
  REQUIRE(difference(map_of(*layer, x, causal()), (1 - lambda_of(layer)) * p) < 1e-12);
  const auto at_lambda = [&](double larger) {  // by lambda_q1 alone
    set(layer, "lambda_k1", at::full({3}, std::log(larger) / 3, at::kDouble));
    set(layer, "lambda_q1", at::ones({3}, at::kDouble));
    set(layer, "lambda_q2", at::zeros({3}, at::kDouble));
    return layer->forward(x, causal()).y;
  };
  const auto y = at_lambda(20), more = at_lambda(40);
  REQUIRE(difference(y, more) < 1e-3 * y.abs().max().item<double>());
}

TEST_CASE("what two maps of a head do is logged of each", "[differential]") {
  const auto layer = make_layer("differential", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto got = statistics_of(*layer, x, causal());
  for (int64_t map : {0, 1}) {
    const auto p = softmax_of(layer, x, map, true);
    const auto entropy = -at::xlogy(p, p).sum(-1);
    for (int64_t h = 0; h < 4; ++h)
      CHECK(got.at(name_of_map("entropy", map))[h] ==
            Approx(entropy.select(1, h).mean().item<double>()));
  }
  CHECK(got.at("lambda")[0] == Approx(lambda_of(layer)));
  const auto a = map_of(*layer, x, causal());
  for (int64_t h = 0; h < 4; ++h) {
    CHECK(got.at("composed_row_sum")[h] == Approx(1 - lambda_of(layer)));
    CHECK(got.at("composed_first_token")[h] ==
          Approx(a.select(1, h).select(2, 0).mean().item<double>()));
  }
}

TEST_CASE("differential heads refuse what a version has not", "[differential]") {
  auto odd = small_shape();
  odd.head_dim = 5;
  REQUIRE_THROWS_WITH(make_layer("differential", odd), Catch::Contains("choose version: 2"));
  REQUIRE_NOTHROW(make_layer("differential", odd, ", version: 2"));
  REQUIRE_THROWS_WITH(make_layer("differential", small_shape(), ", version: 2, norm: true"),
                      Catch::Contains("version 2 has no norm"));
  REQUIRE_THROWS_WITH(make_layer("differential", small_shape(), ", version: 2, lambda_init: 0.5"),
                      Catch::Contains("attention.lambda_init"));
  REQUIRE_THROWS_WITH(make_layer("differential", small_shape(), ", version: 3"),
                      Catch::Contains("attention.version"));
}

}  // namespace headlab::test_differential
