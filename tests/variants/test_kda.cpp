// Kimi delta attention: the recurrence written out, reductions to Gated DeltaNet, statistics, how
// it begins, costs, refusals.
#include <cmath>

#include "experiments/training/optimizer.h"
#include "tests/delta_testing.h"

namespace headlab::test_kda {
using namespace testing;

namespace {

const char* const kKind = "kda";
const char* const kOdd =
    ", qk_heads: 2, value_dim: 5, conv: 3, conv_bias: true, neg_eigval: true, gate: silu, "
    "gate_bias: false, rank: 3, norm_eps: 0.01, scale: 0.7, lower_bound: -5";
const std::vector<std::string> kAllOptions{"", kOdd, ", conv: 0, gate: none",
                                           ", lower_bound: -0.5, qk_heads: 1"};

Tensor through(const Layer& layer, const Tensor& x, const std::string& name) {
  return at::linear(at::linear(x, parameter(layer, name + "_down.weight")),
                    parameter(layer, name + "_up.weight"));
}

// g [B,H,T,d]; `lower_bound` 0: none.
Tensor log_decays(const Layer& layer, const Tensor& x, double lower_bound) {
  const auto f = split_heads(through(layer, x, "a") + parameter(layer, "dt_bias"), kHeads);
  const auto rate = parameter(layer, "a_log").exp().view({kHeads, 1, 1});
  return lower_bound < 0 ? lower_bound / (1 + (-rate * f).exp()) : -rate * (1 + f.exp()).log();
}

DeltaEquations equations_of(const std::string& options) {
  return [options](const Layer& layer, const Tensor& x) {
    const bool odd = options == kOdd;
    auto in = delta_parts(layer, x, odd ? 2 : 1);
    in.g = log_decays(layer, x, odd ? -5 : options == kAllOptions[3] ? -0.5 : 0);
    Tensor gate;
    if (has(layer, "gate_up.weight")) {
      auto z = through(layer, x, "gate");
      if (!odd) z = z + parameter(layer, "gate_up.bias");
      gate = split_heads(odd ? z * z.sigmoid() : z.sigmoid(), kHeads);
    }
    return delta_formula(layer, in, gate, odd ? 0.7 : 1 / std::sqrt(6.), odd ? 0.01 : 1e-5);
  };
}

Layer layer_of(const std::string& options = "") {
  return make_layer(kKind, small_shape(), options);
}

}  // namespace

TEST_CASE("every key feature of a state decays on its own", "[kda]") {
  for (const auto& options : kAllOptions) {
    INFO(options);
    require_equations(layer_of(options), equations_of(options));
  }
}

TEST_CASE("decays of features and states of kda are logged as means", "[kda]") {
  for (const auto& options : kAllOptions) {
    INFO(options);
    require_delta_statistics(layer_of(options), equations_of(options));
  }
}

TEST_CASE("features that decay alike are Gated DeltaNet", "[kda]") {
  // The rank is d_model: products of two matrices are any matrix.
  for (const std::string gate : {"sigmoid", "silu", "none"}) {
    INFO(gate);
    const auto kda = layer_of(", rank: 20, gate_bias: false, gate: " + gate);
    const auto layer = make_layer("gated_deltanet", small_shape(), ", gate: " + gate);
    for (const char* name : {"a_down.weight", "gate_down.weight"})
      if (has(kda, name)) set(kda, name, at::eye(20, at::kDouble));
    copy_weights(kda, layer);
    set(kda, "a_up.weight", parameter(layer, "a.weight").repeat_interleave(6, 0));
    set(kda, "dt_bias", parameter(layer, "dt_bias").repeat_interleave(6));
    if (gate != "none") set(kda, "gate_up.weight", parameter(layer, "gate.weight"));
    const auto x = random({kBatch, 100, 20});
    REQUIRE(relative_difference(kda->forward(x, causal()).y, layer->forward(x, causal()).y) <
            1e-12);
    REQUIRE(relative_difference(map_of(*kda, x, causal()), map_of(*layer, x, causal())) < 1e-12);
  }
}

TEST_CASE("no decay falls below its bound", "[kda]") {
  const auto layer = layer_of(", lower_bound: -2");
  set(layer, "dt_bias", at::full({kHeads * 6}, 1e4, at::kDouble));
  const auto x = random({kBatch, kTokens, 20});
  const auto lowest = statistics_of(*layer, x, causal()).at("decay_mean");
  set(layer, "dt_bias", at::full({kHeads * 6}, -1e4, at::kDouble));
  const auto highest = statistics_of(*layer, x, causal()).at("decay_mean");
  for (int64_t h = 0; h < kHeads; ++h) {
    CHECK(lowest[h] == Approx(std::exp(-2)));
    CHECK(highest[h] == Approx(1));
  }
}

TEST_CASE("features that decay fast leave those that do not their precision", "[kda]") {
  at::NoGradGuard no_grad;
  const auto layer = layer_of();
  for (auto& p : layer->parameters()) p.copy_(p.to(at::kFloat));
  // Half of the features lose everything at each token, where e^-c alone is beyond every type.
  auto biases = at::full({kHeads, 6}, -4, at::kDouble);
  biases.narrow(1, 0, 3).fill_(300);
  set(layer, "dt_bias", biases.flatten());
  const auto x = random({kBatch, 300, 20}).to(at::kFloat).to(at::kDouble);
  const auto want = equations_of("")(layer, x).y;
  REQUIRE(relative_difference(layer->forward(x, causal()).y, want) < 1e-12);
  layer->to(at::kFloat);
  const auto y = layer->forward(x.to(at::kFloat), causal()).y;
  REQUIRE(relative_difference(y.to(at::kDouble), want) < 1e-5);
}

TEST_CASE("kda begins as its authors draw it, and no weight decay moves its decays", "[kda]") {
  auto shape = small_shape();
  shape.heads = shape.kv_heads = 400;
  const auto layer = fresh(kKind, shape, "");
  const auto rate = parameter(layer, "a_log").exp(), t = at::softplus(parameter(layer, "dt_bias"));
  CHECK(rate.min().item<double>() >= 1);
  CHECK(rate.max().item<double>() <= 16);
  CHECK(rate.mean().item<double>() == Approx(8.5).margin(1));
  CHECK(t.numel() == 400 * 6);
  CHECK(t.min().item<double>() > 0.00099);
  CHECK(t.max().item<double>() < 0.101);
  CHECK(parameter(fresh(kKind, shape, ", lower_bound: -5"), "a_log").abs().max().item<double>() ==
        0);
  CHECK(parameter(layer, "gate_up.bias").abs().max().item<double>() == 0);
  AdamW adamw(*layer, {}, {.weight_decay = 0.5});
  std::map<std::string, Tensor> before;
  for (const auto& p : layer->named_parameters()) {
    before[p.key()] = p.value().detach().clone();
    p.value().mutable_grad() = at::zeros_like(p.value());
  }
  adamw.step(0.1);
  for (const char* name : {"a_log", "dt_bias", "norm.weight"})
    CHECK(parameter(layer, name).equal(before[name]));
  CHECK_FALSE(parameter(layer, "a_up.weight").equal(before["a_up.weight"]));
}

TEST_CASE("operations of kda are those of all weights and of the state at each token", "[kda]") {
  const double D = 20, H = 4, d = 6, T = 7;
  const auto want = [&](double qk, double e, double r, double taps, double conv_bias,
                        double gate_bias) {
    const double weights = D * (2 * qk * d + 2 * H * e + H + 2 * r) + r * H * (d + e) +
                           (taps + conv_bias) * (2 * qk * d + H * e) + H * (1 + d + gate_bias * e) +
                           e;
    return 2 * T * weights + 7 * T * H * d * e;
  };
  CHECK(layer_of()->flops(7, 7, 28) == want(4, 6, 6, 4, 0, 1));
  CHECK(layer_of(kOdd)->flops(7, 7, 28) == want(2, 5, 3, 3, 1, 0));
}

TEST_CASE("kda refuses what it has not, by name", "[kda]") {
  const auto refused = [](const std::string& options, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_WITH(layer_of(options), Catch::Contains(message));
  };
  refused(", qk_heads: 3", "attention.qk_heads: 3 do not divide 4 heads; choose a divisor");
  refused(", rank: 0", "attention.rank");
  refused(", lower_bound: 0", "attention.lower_bound: must be below 0");
  refused(", conv: 0, conv_bias: true", "attention.conv_bias: there is no convolution");
  refused(", gate: relu", "attention.gate");
  require_demands_refused(kKind);
  REQUIRE_FALSE(layer_of()->matrices());
}

}  // namespace headlab::test_kda
