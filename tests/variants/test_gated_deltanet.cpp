// Gated DeltaNet: the recurrence written out, reductions to simpler rules, statistics, how it
// begins, costs, refusals.
#include <cmath>

#include "core/errors.h"
#include "experiments/training/optimizer.h"
#include "tests/delta_testing.h"

namespace headlab::test_gated_deltanet {
using namespace testing;

namespace {

const char* const kKind = "gated_deltanet";
const char* const kOdd =
    ", qk_heads: 2, value_dim: 5, conv: 3, conv_bias: true, neg_eigval: true, gate: sigmoid, "
    "norm_eps: 0.01, scale: 0.7";
const std::vector<std::string> kAllOptions{"", kOdd, ", conv: 0, gate: none",
                                           ", conv: 1, qk_heads: 1"};

DeltaEquations equations_of(const std::string& options) {
  return [options](const Layer& layer, const Tensor& x) {
    const bool odd = options == kOdd;
    auto in = delta_parts(layer, x, odd ? 2 : 1);
    const auto f = at::linear(x, parameter(layer, "a.weight")) + parameter(layer, "dt_bias");
    const auto g = -parameter(layer, "a_log").exp() * (1 + f.exp()).log();  // [B,T,H]
    in.g = g.transpose(1, 2).unsqueeze(3);
    Tensor gate;
    if (has(layer, "gate.weight")) {
      const auto z = split_heads(at::linear(x, parameter(layer, "gate.weight")), kHeads);
      gate = odd ? z.sigmoid() : z * z.sigmoid();
    }
    return delta_formula(layer, in, gate, odd ? 0.7 : 1 / std::sqrt(6.), odd ? 0.01 : 1e-5);
  };
}

Layer layer_of(const std::string& options = "") {
  return make_layer(kKind, small_shape(), options);
}

// b = 1 at every token, and no decay.
void write_all_and_forget_nothing(const Layer& layer) {
  set(layer, "a_log", at::full({kHeads}, -900, at::kDouble));
  // x has a feature that is always 1.
  auto beta = at::zeros({kHeads, 20}, at::kDouble);
  beta.select(1, 0).fill_(60);
  set(layer, "beta.weight", beta);
}
Tensor with_a_one(Tensor x) {
  x.select(2, 0).fill_(1);
  return x;
}

}  // namespace

TEST_CASE("a state is decayed, corrected and read token by token", "[gated_deltanet]") {
  for (const auto& options : kAllOptions) {
    INFO(options);
    require_equations(layer_of(options), equations_of(options));
  }
}

TEST_CASE("the mean decay, its half-life, b and the last state are logged", "[gated_deltanet]") {
  for (const auto& options : kAllOptions) {
    INFO(options);
    require_delta_statistics(layer_of(options), equations_of(options));
  }
}

TEST_CASE("without decay it is DeltaNet", "[gated_deltanet]") {
  const auto layer = layer_of();
  set(layer, "a_log", at::full({kHeads}, -900, at::kDouble));
  const auto x = random({kBatch, 80, 20});
  auto in = delta_parts(layer, x);
  in.g = at::zeros_like(in.beta);
  REQUIRE(relative_difference(map_of(*layer, x, causal()),
                              map_of_recurrence(in, 1 / std::sqrt(6.))) < 1e-12);
}

TEST_CASE("tokens of one key overwrite each other, tokens of orthogonal keys do not meet",
          "[gated_deltanet]") {
  const auto layer = layer_of(", conv: 0");
  const auto x = with_a_one(random({kBatch, 6, 20}));
  write_all_and_forget_nothing(layer);
  auto k = at::zeros({kHeads * 6, 20}, at::kDouble);
  k.select(1, 0).fill_(900);  // silu of it: so long that 1e-6 is nothing
  set(layer, "k.weight", k);
  const auto same = map_of(*layer, x, causal());
  REQUIRE(same.tril(-1).abs().max().item<double>() < 1e-6);
  REQUIRE(same.abs().max().item<double>() > 0.01);

  // Key t reads feature t of x, which is 900 at token t alone.
  const auto own = with_a_one(
      at::cat({at::zeros({kBatch, 6, 1}, at::kDouble),
               900 * at::eye(6, at::kDouble).expand({kBatch, 6, 6}), random({kBatch, 6, 13})},
              2));
  k.zero_();
  k.narrow(1, 1, 6).copy_(at::eye(6, at::kDouble).repeat({kHeads, 1}));
  set(layer, "k.weight", k);
  const auto parts = delta_parts(layer, own);
  const auto want = (at::matmul(parts.q, parts.k.transpose(2, 3)) / std::sqrt(6.)).tril();
  REQUIRE(difference(map_of(*layer, own, causal()), want) < 1e-9);
}

TEST_CASE("the scale multiplies the map, and the norm divides it out again", "[gated_deltanet]") {
  const auto one = layer_of(", scale: 1, norm_eps: 1e-12"),
             eight = layer_of(", scale: 8, norm_eps: 1e-12");
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE(relative_difference(map_of(*eight, x, causal()), 8 * map_of(*one, x, causal())) < 1e-12);
  REQUIRE(relative_difference(eight->forward(x, causal()).y, one->forward(x, causal()).y) < 1e-6);
}

TEST_CASE("heads that share a query and a key have copies of it", "[gated_deltanet]") {
  const auto shared = layer_of(", qk_heads: 2"), own = layer_of();
  copy_weights(own, shared);
  for (const char* name : {"q.weight", "k.weight", "q_conv.weight", "k_conv.weight"}) {
    const auto of_two = parameter(shared, name).view({2, 6, -1});
    set(own, name, of_two.repeat_interleave(2, 0).flatten(0, 1));
  }
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE(difference(shared->forward(x, causal()).y, own->forward(x, causal()).y) < 1e-12);
  // A slice keeps a group's rows until its last head is gone.
  shared->mask_heads({1});
  REQUIRE(parameter(shared->slice(), "k_conv.weight").size(0) == 12);
  shared->mask_heads({0, 1});
  const auto sliced = shared->slice();
  REQUIRE(parameter(sliced, "k_conv.weight").size(0) == 6);
  REQUIRE(difference(sliced->forward(x, causal()).y, shared->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("patterns are of the weights' sizes, shared out", "[gated_deltanet]") {
  const auto layer = layer_of();
  const auto x = random({kBatch, kTokens, 20});
  const auto seen = run(layer, x, causal());
  const auto a = seen.map.abs() / seen.map.abs().sum(-1, true);
  const auto entropy = -(a * a.clamp_min(1e-300).log()).sum(-1).mean(at::IntArrayRef({0, 2}));
  for (int64_t h = 0; h < kHeads; ++h)
    CHECK(seen.statistics.at("entropy")[h] == Approx(entropy[h].item<double>()));
}

TEST_CASE("decays and steps begin as the authors draw them, and no weight decay moves them",
          "[gated_deltanet]") {
  auto shape = small_shape();
  shape.heads = shape.kv_heads = 400;
  const auto layer = fresh(kKind, shape, "");
  const auto rate = parameter(layer, "a_log").exp(), t = at::softplus(parameter(layer, "dt_bias"));
  CHECK(rate.min().item<double>() >= 0);
  CHECK(rate.max().item<double>() <= 16);
  CHECK(rate.mean().item<double>() == Approx(8).margin(1));
  CHECK(t.min().item<double>() > 0.00099);
  CHECK(t.max().item<double>() < 0.101);
  CHECK(t.log().mean().item<double>() == Approx(std::log(0.01)).margin(0.2));
  CHECK(parameter(layer, "v_conv.weight").abs().max().item<double>() <= 0.5);
  CHECK(parameter(layer, "v_conv.weight").std().item<double>() ==
        Approx(0.5 / std::sqrt(3)).epsilon(0.02));
  AdamW adamw(*layer, {}, {.weight_decay = 0.5});
  std::map<std::string, Tensor> before;
  for (const auto& p : layer->named_parameters()) {
    before[p.key()] = p.value().detach().clone();
    p.value().mutable_grad() = at::zeros_like(p.value());
  }
  adamw.step(0.1);
  for (const char* name : {"a_log", "dt_bias", "norm.weight"})
    CHECK(parameter(layer, name).equal(before[name]));
  CHECK_FALSE(parameter(layer, "a.weight").equal(before["a.weight"]));
}

TEST_CASE("operations are those of all weights and of the state at each token",
          "[gated_deltanet]") {
  const double D = 20, H = 4, d = 6, T = 7;
  const double plain = D * (2 * H * d + 3 * H * d + 2 * H) + 4 * 3 * H * d + 2 * H + d;
  CHECK(layer_of()->flops(7, 7, 28) == 2 * T * plain + 7 * T * H * d * d);
  const double e = 5, k = 12;  // kOdd
  const double odd = D * (2 * k + 3 * H * e + 2 * H) + (3 + 1) * (2 * k + H * e) + 2 * H + e;
  CHECK(layer_of(kOdd)->flops(7, 7, 28) == 2 * T * odd + 7 * T * H * d * e);
  CHECK(layer_of(kOdd)->flops(7, 7, 49) == layer_of(kOdd)->flops(7, 7, 28));
}

TEST_CASE("Gated DeltaNet refuses what it has not, by name", "[gated_deltanet]") {
  const auto refused = [](const std::string& options, const std::string& message) {
    INFO(options);
    REQUIRE_THROWS_WITH(layer_of(options), Catch::Contains(message));
  };
  refused(", qk_heads: 3", "attention.qk_heads: 3 do not divide 4 heads; choose a divisor");
  refused(", qk_heads: 0", "attention.qk_heads");
  refused(", value_dim: 0", "attention.value_dim");
  refused(", conv: 0, conv_bias: true", "attention.conv_bias: there is no convolution");
  refused(", conv: -1", "attention.conv");
  refused(", gate: relu", "attention.gate");
  refused(", norm_eps: 0", "attention.norm_eps");
  refused(", bias: true", "bias");
  require_demands_refused(kKind);
  const auto layer = layer_of();
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE_THROWS_WITH(layer->forward(x), Catch::Contains("must be causal"));
  auto ctx = causal();
  ctx.mask.allowed = at::ones({kBatch, 1, kTokens, kTokens}, at::kBool);
  REQUIRE_THROWS_WITH(layer->forward(x, ctx), Catch::Contains("hides keys from all queries alike"));
  REQUIRE_FALSE(layer->matrices());
  for (const auto backend : {Backend::kSdpa, Backend::kFlash, Backend::kRows}) {
    ctx = causal();
    ctx.backend = backend;
    REQUIRE_THROWS_AS(layer->forward(x, ctx), BackendError);
  }
}

}  // namespace headlab::test_gated_deltanet
