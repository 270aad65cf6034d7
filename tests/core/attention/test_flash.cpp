// Fused attention with biases by distance and log-sum-exp, against maps that are held.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "core/attention/attend.h"
#include "core/attention/paths/flash.h"
#include "experiments/benchmarks/allocations.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_flash {
using namespace testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::string name;
  int64_t T, S;
  AttentionCall scope = {};  // without q, k, v and a bias
  int64_t B = 2, H = 3, d = 5, e = 4;
};

AttentionCall reach(int64_t back, int64_t ahead, const std::vector<int64_t>& lengths = {}) {
  AttentionCall scope;
  scope.reach = {back, ahead};
  if (!lengths.empty()) scope.key_length = at::tensor(lengths, at::kLong);
  return scope;
}

std::vector<Case> cases() {
  const auto all = kUnlimited;
  return {{"everything", 7, 7, reach(all, all)},
          {"causal", 7, 7, reach(all, 0)},
          {"causal, several tiles", 300, 300, reach(all, 0)},
          {"one query", 1, 9, reach(all, 0)},
          {"the last queries, causal", 4, 9, reach(all, 0)},
          {"more queries than keys", 9, 4, reach(all, all)},
          {"more queries than keys, causal: the first see nothing", 9, 4, reach(all, 0)},
          {"window of one", 6, 8, reach(0, 0)},
          {"window", 150, 170, reach(20, 0)},
          {"window in both directions", 141, 133, reach(2, 3)},
          {"lengths", 7, 7, reach(all, all, {3, 7})},
          {"equal lengths", 7, 7, reach(all, all, {4, 4})},
          {"lengths, one of 0", 5, 7, reach(all, all, {0, 7})},
          {"lengths of 0", 5, 7, reach(all, all, {0, 0})},
          {"lengths, causal", 7, 7, reach(all, 0, {7, 2})},
          {"lengths, causal, several tiles", 270, 270, reach(all, 0, {130, 270})},
          {"lengths, window: rows beyond them see nothing", 160, 160, reach(2, 0, {20, 155})},
          {"lengths, window in both directions", 8, 11, reach(1, 2, {2, 11})},
          {"wide values", 7, 6, reach(all, all), 2, 3, 3, 6},
          {"equal widths, one example", 7, 7, reach(all, 0), 1, 3, 4, 4}};
}

struct Inputs {
  Tensor q, k, v, bias;  // [B,H,T,d], [B,H,S,d], [B,H,S,e], [H,S+T-1]
  std::vector<Tensor> leaves() const {
    if (bias.defined() && bias.requires_grad()) return {q, k, v, bias};
    return {q, k, v};
  }
};

enum class Bias { kNone, kFixed, kLearned };

Inputs draw(const Case& c, Bias bias) {
  torch::manual_seed(3);
  Inputs in{
      random({c.B, c.H, c.T, c.d}), random({c.B, c.H, c.S, c.d}), random({c.B, c.H, c.S, c.e}), {}};
  if (bias != Bias::kNone) in.bias = random({c.H, c.S + c.T - 1});
  for (auto& t : {in.q, in.k, in.v}) t.requires_grad_();
  if (bias == Bias::kLearned) in.bias.requires_grad_();
  return in;
}

// The same by a map [B,H,T,S] that is held.
AttendedRows eager(const Inputs& in, const AttentionCall& scope, double scale) {
  const int64_t T = in.q.size(2), S = in.k.size(2);
  auto z = at::matmul(in.q, in.k.transpose(2, 3)) * scale;
  const auto distance = at::arange(S) - at::arange(S - T, S).unsqueeze(1);  // [T,S]
  if (in.bias.defined())
    z = z + in.bias.index_select(1, (distance + S - 1).flatten()).view({in.q.size(1), T, S});
  auto seen = ((distance >= -std::min(scope.reach.back, S + T)) & (distance <= scope.reach.ahead))
                  .expand(z.sizes());  // [B,H,T,S]
  if (scope.key_length.defined())
    seen = seen & within_length(scope.key_length, S, at::kCPU).unsqueeze(1).unsqueeze(1);
  const auto dead = seen.any(-1).logical_not();  // [B,H,T]
  // A row without keys is taken out before: its exponentials would turn gradients NaN.
  const auto filled = z.masked_fill(seen.logical_not(), -kInfinity)
                          .masked_fill(dead.unsqueeze(-1), 0);  // [B,H,T,S]
  const auto map = at::softmax(filled, -1).masked_fill(dead.unsqueeze(-1), 0);
  return {at::matmul(map, in.v), at::logsumexp(filled, -1).masked_fill(dead, -kInfinity)};
}

AttendedRows flash(const Inputs& in, const AttentionCall& scope, double scale) {
  auto own = scope;
  own.q = in.q, own.k = in.k, own.v = in.v, own.distance_bias = in.bias;
  own.scale = scale;
  return flash_attend(own);
}

enum class Uses { kOut, kLse, kBoth };

// A scalar that depends on every element differently; rows without keys take no part in lse.
Tensor loss(const AttendedRows& rows, Uses uses) {
  torch::manual_seed(4);
  const auto out = rows.out * random(rows.out.sizes());
  const auto lse = rows.lse.masked_fill(rows.lse == -kInfinity, 0) * random(rows.lse.sizes());
  if (uses == Uses::kOut) return out.sum();
  return uses == Uses::kLse ? lse.sum() : (out.sum() + lse.square().sum());
}

double difference_of_lse(const Tensor& got, const Tensor& want) {
  REQUIRE((got == -kInfinity).equal(want == -kInfinity));
  return difference(got.masked_fill(got == -kInfinity, 0), want.masked_fill(want == -kInfinity, 0));
}

}  // namespace

TEST_CASE("fused rows, their log-sum-exp and all gradients are those of a map that is held",
          "[flash]") {
  for (const auto& c : cases())
    for (const auto bias : {Bias::kNone, Bias::kFixed, Bias::kLearned})
      for (const auto uses : {Uses::kOut, Uses::kLse, Uses::kBoth}) {
        if (uses != Uses::kBoth && (bias != Bias::kLearned || c.T > 100)) continue;
        INFO(c.name << ", bias " << int(bias) << ", uses " << int(uses));
        const auto in = draw(c, bias);
        const auto got = flash(in, c.scope, 0.6), want = eager(in, c.scope, 0.6);
        REQUIRE(difference(got.out, want.out) < 1e-12);
        REQUIRE(difference_of_lse(got.lse, want.lse) < 1e-12);
        const auto leaves = in.leaves();
        const auto got_grads = torch::autograd::grad({loss(got, uses)}, leaves);
        const auto want_grads =
            torch::autograd::grad({loss(want, uses)}, leaves, {}, {}, false, /*allow_unused=*/true);
        for (size_t i = 0; i < leaves.size(); ++i) {
          INFO("gradient " << i);
          const auto& w = want_grads[i];
          REQUIRE(relative_difference(got_grads[i], w.defined() ? w : at::zeros_like(leaves[i])) <
                  1e-12);
        }
      }
}

TEST_CASE("fused rows take tensors of any strides, and float32", "[flash]") {
  const Case c{"", 7, 9, reach(kUnlimited, 0, {9, 5})};
  const auto in = draw(c, Bias::kFixed);
  const auto want = flash(in, c.scope, 0.6);
  const auto turned = [](const Tensor& t) {
    return t.transpose(1, 3).contiguous().transpose(1, 3);
  };
  const Inputs strided{turned(in.q), turned(in.k), turned(in.v), in.bias};
  REQUIRE(strided.q.stride(3) != 1);
  REQUIRE(difference(flash(strided, c.scope, 0.6).out, want.out) < 1e-14);
  const Inputs single{in.q.to(at::kFloat), in.k.to(at::kFloat), in.v.to(at::kFloat), in.bias};
  const auto rows = flash(single, c.scope, 0.6);
  REQUIRE(rows.out.scalar_type() == at::kFloat);
  REQUIRE(difference(rows.out.to(at::kDouble), want.out) < 1e-5);
  REQUIRE(difference_of_lse(rows.lse.to(at::kDouble), want.lse) < 1e-5);
}

TEST_CASE("fused rows with lengths run in inference mode on several threads", "[flash]") {
  const Case c{"", 7, 9, reach(kUnlimited, 0, {9, 5, 1, 0}), 4};
  const auto in = draw(c, Bias::kFixed);
  const auto want = flash(in, c.scope, 0.6).out.detach();
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  {
    const c10::InferenceMode inference;
    const Inputs own{in.q * 1, in.k * 1, in.v * 1, in.bias};
    CHECK(difference(flash(own, c.scope, 0.6).out, want) < 1e-14);
  }
  at::set_num_threads(threads);
}

TEST_CASE("fused rows give the same bits twice", "[flash]") {
  const Case c{"", 140, 140, reach(kUnlimited, 0, {140, 77})};
  std::vector<Tensor> first;
  for (int run = 0; run < 2; ++run) {
    const auto in = draw(c, Bias::kLearned);
    const auto rows = flash(in, c.scope, 0.6);
    auto all = torch::autograd::grad({loss(rows, Uses::kBoth)}, in.leaves());
    all.push_back(rows.out);
    if (run == 0) first = all;
    for (size_t i = 0; i < all.size(); ++i) REQUIRE(all[i].equal(first[i]));
  }
}

TEST_CASE("fused rows pass zeros on where no gradient arrives", "[flash]") {
  const auto in = draw({"", 4, 4, {}}, Bias::kNone);
  const auto rows = flash(in, {}, 1);
  const auto node = rows.out.grad_fn();
  REQUIRE_THAT(node->name(), Catch::Contains("Flash"));
  const at::NoGradGuard no_grad;
  const auto passed = (*node)({Tensor(), Tensor()});
  for (size_t i = 0; i < 3; ++i)
    REQUIRE((!passed[i].defined() || passed[i].eq(0).all().item<bool>()));
}

TEST_CASE("second derivatives of fused rows are refused", "[flash]") {
  const auto in = draw({"", 4, 4, {}}, Bias::kNone);
  REQUIRE_THROWS_WITH(torch::autograd::grad({loss(flash(in, {}, 1), Uses::kBoth)}, {in.q}, {}, {},
                                            /*create_graph=*/true),
                      Catch::Contains("second derivatives"));
}

TEST_CASE("fused rows refuse sizes that do not fit", "[flash]") {
  const auto in = draw({"", 4, 6, {}}, Bias::kNone);
  const auto attend = [&](const Tensor& bias, const Tensor& key_length) {
    AttentionCall scope;
    scope.key_length = key_length;
    return flash({in.q, in.k, in.v, bias}, scope, 1);
  };
  REQUIRE_THROWS_WITH(attend(random({3, 8}), {}), Catch::Contains("[3, 8] for 3 heads"));
  REQUIRE_THROWS_WITH(attend({}, at::ones({3}, at::kLong)),
                      Catch::Contains("key_length [3] for 2 examples"));
  REQUIRE_THROWS(flash({in.q, in.v, in.v, {}}, {}, 1));
  REQUIRE_FALSE(flash_serves(in.q.to(at::kBFloat16), in.k, in.v));
  REQUIRE_FALSE(flash_serves(in.q.narrow(2, 0, 0), in.k, in.v));
}

TEST_CASE("training with biases by distance and log-sum-exp holds no map of one example",
          "[flash][memory]") {
  constexpr int64_t B = 2, H = 3, T = 1024, d = 8;
  const Case c{"", T, T, reach(kUnlimited, 0), B, H, d, d};
  constexpr int64_t kMap = H * T * T * sizeof(double);
  const auto in = draw(c, Bias::kLearned);
  const auto memory =
      allocations_of([&] { loss(flash(in, c.scope, 0.3), Uses::kBoth).backward(); });
  REQUIRE(memory.largest < kMap / 4);
  REQUIRE(memory.peak < kMap);
  REQUIRE(allocations_of([&] { eager(draw(c, Bias::kFixed), c.scope, 0.3); }).largest >= kMap);
}

}  // namespace headlab::test_flash
