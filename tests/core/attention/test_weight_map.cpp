// What turns scores into weights: its formulas, its paths, its statistics.
#include <cmath>

#include "core/attention/compose.h"
#include "core/attention/entmax.h"
#include "core/attention/weight_map.h"
#include "tests/layers_testing.h"

namespace headlab::test_weight_map {
using namespace testing;

namespace {

using Kind = WeightMap::Kind;
using Divisor = WeightMap::Divisor;

struct Named {
  std::string name;
  WeightMap map;
};

// H = 3 heads.
std::vector<Named> all_maps() {
  const auto of = [](Kind kind) {
    WeightMap map;
    map.kind = kind;
    return map;
  };
  std::vector<Named> maps{{"softpick", of(Kind::kSoftpick)},
                          {"sigmoid", of(Kind::kSigmoid)},
                          {"sink", of(Kind::kSoftmax)},
                          {"learned entmax", of(Kind::kEntmax)}};
  maps[2].map.sink = at::tensor({0.3, -1., 2.}, at::kDouble).requires_grad_();
  maps[3].map.alphas = at::tensor({1.2, 1.5, 1.9}, at::kDouble).requires_grad_();
  for (double alpha : {1., 1.3, 1.5, 2., 2.5}) {
    auto map = of(Kind::kEntmax);
    map.alpha = alpha;
    maps.push_back({"entmax " + std::to_string(alpha), map});
  }
  for (auto divisor : {Divisor::kSqrt, Divisor::kLength}) {
    auto map = of(Kind::kSigmoid);
    map.offset = -0.7, map.divisor = divisor;
    maps.push_back({divisor == Divisor::kSqrt ? "sigmoid by sqrt" : "sigmoid by length", map});
  }
  return maps;
}

HeadCall call_with(const WeightMap& map, const HeadContext& context = {}) {
  auto call = HeadCall::outside_a_layer(context);
  call.map = map;
  return call;
}

// Rows of a map one by one, as the equations say it.
Tensor by_definition(const Tensor& z, const Tensor& allowed, const WeightMap& map) {
  const auto a = at::zeros_like(z);
  const int64_t T = z.size(2), S = z.size(3);
  for (int64_t b = 0; b < z.size(0); ++b)
    for (int64_t h = 0; h < z.size(1); ++h)
      for (int64_t i = 0; i < T; ++i) {
        const auto seen = allowed.expand_as(z)[b][h][i].nonzero().squeeze(1);
        if (seen.numel() == 0) continue;
        const auto row = z[b][h][i].index_select(0, seen), e = row.exp();
        Tensor w;
        if (map.kind == Kind::kSoftpick) w = at::relu(e - 1) / (e - 1).abs().sum();
        if (map.kind == Kind::kSigmoid)
          w = 1 / (1 + (-row - map.offset.value_or(-std::log(S))).exp());
        if (map.sink.defined()) w = e / (e.sum() + map.sink[h].exp());
        if (map.kind == Kind::kEntmax)
          w = map.alphas.defined() ? entmax(row, {}, map.alphas[h].item<double>(), Backend::kEager)
                                   : entmax(row, {}, map.alpha, Backend::kEager);
        const auto n = static_cast<double>(S - T + i + 1);
        if (map.divisor == Divisor::kSqrt) w = w / std::sqrt(n);
        if (map.divisor == Divisor::kLength) w = w / n;
        a[b][h][i].index_copy_(0, seen, w);
      }
  return a;
}

struct Inputs {
  Tensor q, k, v;
  std::vector<Tensor> all() const { return {q, k, v}; }
};
Inputs inputs(int64_t T, int64_t S, at::ScalarType type = at::kDouble) {
  const auto make = [&](int64_t n, int64_t d) {
    return at::randn({2, 3, n, d}, type).requires_grad_();
  };
  return {make(T, 5), make(S, 5), make(S, 4)};
}

// y and the gradients of everything, of sum(y * cotangent).
std::vector<Tensor> with_gradients(const Inputs& in, HeadCall call, Backend backend,
                                   const Composition& pre, const Composition& post) {
  call.backend = backend;
  const auto y = composed_attend(in.q, in.k, in.v, pre, post, call, 0.9).out;
  torch::manual_seed(3);
  auto wanted = in.all();
  for (const auto& learned : {call.map.sink, call.map.alphas})
    if (learned.defined()) wanted.push_back(learned);
  for (auto& t : wanted) t.mutable_grad() = Tensor();
  (y * at::randn_like(y)).sum().backward();
  std::vector<Tensor> all{y.detach()};
  for (const auto& t : wanted) all.push_back(t.grad());
  return all;
}

}  // namespace

TEST_CASE("each map is what its equation says", "[weight_map]") {
  for (const auto& [name, map] : all_maps()) {
    INFO(name);
    const auto z = at::randn({2, 3, 5, 7}, at::kDouble) * 2;
    auto allowed = at::rand({2, 3, 5, 7}) < 0.6;
    allowed[1][2][3].fill_(false);
    const auto a = weights_of(z, allowed, call_with(map));
    CHECK(difference(a, by_definition(z, allowed, map)) < 1e-7);
    const auto all = at::ones({5, 7}, at::kBool);
    CHECK(difference(weights_of(z, {}, call_with(map)), by_definition(z, all, map)) < 1e-7);
  }
}

TEST_CASE("large scores overflow in no map, and rows of negative ones have finite gradients",
          "[weight_map]") {
  for (const auto& [name, map] : all_maps())
    for (double shift : {-800., 0., 800.})
      for (auto backend : {Backend::kAuto, Backend::kEager}) {
        INFO(name << " " << shift);
        const auto in = inputs(4, 6, at::kFloat);
        HeadContext context;
        context.bias = at::full({1, 1, 4, 6}, shift, at::kFloat);
        for (const auto& found : with_gradients(in, call_with(map, context), backend, {}, {}))
          CHECK(found.isfinite().all().item<bool>());
      }
}

TEST_CASE("blocks of rows give what the whole map gives, gradients included", "[weight_map]") {
  const auto mixing = [] { return at::eye(3, at::kDouble) + at::randn({3, 3}, at::kDouble) * 0.4; };
  for (const auto& [name, map] : all_maps())
    for (const bool composed : {false, true})
      for (const auto& [T, S] :
           std::vector<std::pair<int64_t, int64_t>>{{7, 7}, {19, 33}, {1, 40}}) {
        torch::manual_seed(T);
        INFO(name << ", T = " << T << (composed ? ", composed" : ""));
        const auto in = inputs(T, S);
        HeadContext context;
        context.mask.causal = true;
        context.mask.window = T == 19 ? 9 : 0;
        context.mask.key_length = at::tensor({S, S - 3});
        if (T == 7) context.mask.allowed = at::rand({2, 3, T, S}) < 0.8;
        if (T == 19) context.bias = at::randn({1, 3, T, S}, at::kDouble);
        const auto pre = composed ? Composition::by_matrix(mixing(), {}, {}) : Composition(),
                   post = composed ? Composition::by_matrix(mixing(), {}, {}) : Composition();
        const auto call = call_with(map, context);
        const auto rows = with_gradients(in, call, Backend::kAuto, pre, post),
                   whole = with_gradients(in, call, Backend::kEager, pre, post);
        for (size_t n = 0; n < rows.size(); ++n) {
          INFO("tensor " << n);
          CHECK(relative_difference(rows[n], whole[n]) < 2e-7);
        }
      }
}

TEST_CASE("float rows are as good as float maps", "[weight_map]") {
  for (const auto& [name, map] : all_maps()) {
    if (map.sink.defined() || map.alphas.defined()) continue;
    INFO(name);
    torch::manual_seed(5);
    const auto in = inputs(21, 50, at::kFloat);
    HeadContext context;
    context.mask.causal = true;
    const auto call = call_with(map, context);
    const auto rows = with_gradients(in, call, Backend::kAuto, {}, {}),
               whole = with_gradients(in, call, Backend::kEager, {}, {});
    for (size_t n = 0; n < rows.size(); ++n) CHECK(relative_difference(rows[n], whole[n]) < 3e-5);
  }
}

TEST_CASE("uniform heads weigh what they may see by 1 / n, whatever the map", "[weight_map]") {
  for (const auto& [name, map] : all_maps())
    for (auto backend : {Backend::kAuto, Backend::kEager}) {
      INFO(name);
      const auto in = inputs(4, 6);
      HeadContext context;
      context.mask.causal = true;
      context.uniform = at::tensor({0, 1, 0}).to(at::kBool);
      context.backend = backend;
      const auto y = attend(in.q, in.k, in.v, call_with(map, context), 0.9);
      for (int64_t i = 0; i < 4; ++i)
        CHECK(difference(y[0][1][i], in.v[0][1].narrow(0, 0, i + 3).mean(0)) < 1e-12);
    }
}

TEST_CASE("maps that are no softmax are refused where only the softmax is served", "[weight_map]") {
  const auto in = inputs(4, 6);
  for (const auto& [name, map] : all_maps()) {
    if (map.sink.defined() || map.alpha == 1) continue;
    HeadContext context;
    context.backend = Backend::kFlash;
    CHECK_THROWS_WITH(attend(in.q, in.k, in.v, call_with(map, context), 1),
                      Catch::Contains("maps other than the softmax"));
  }
}

TEST_CASE("scores that are no numbers make rows of NaN in every map", "[weight_map]") {
  const auto mixing = at::eye(3, at::kDouble) + 0.3 * at::ones({3, 3}, at::kDouble);
  for (const auto& [name, map] : all_maps())
    for (const bool composed : {false, true})
      for (const int64_t lost : {0, 11, 40})  // queries; or, behind the last one, a key
        for (const auto type : {at::kDouble, at::kFloat})
          for (const auto backend : {Backend::kAuto, Backend::kEager}) {
            INFO(name << (composed ? ", composed" : "") << ", row " << lost << ", backend "
                      << static_cast<int>(backend));
            torch::manual_seed(8);
            const auto in = inputs(40, 40, type);
            {
              at::NoGradGuard no_grad;
              // Of one feature alone.
              if (lost < 40) in.q.select(2, lost).select(2, 1).fill_(std::nan(""));
              if (lost == 40) in.k.select(2, 20).fill_(std::nan(""));
            }
            HeadContext context;
            context.mask.causal = true;
            auto call = call_with(map, context);
            call.backend = backend;
            const auto c =
                composed ? Composition::by_matrix(mixing.to(type), {}, {}) : Composition();
            for (auto* learned : {&call.map.sink, &call.map.alphas})
              if (learned->defined()) *learned = learned->detach().to(type);
            const auto y = composed_attend(in.q, in.k, in.v, c, c, call, 0.9).out;
            const auto rows = y.isnan().all(-1);  // [B,H,T]
            const auto seen = at::arange(40);
            const auto want = lost < 40 ? seen == lost : seen >= 20;
            CHECK((rows | want.logical_not()).all().item<bool>());
            // A kernel may find a key in rows that it is hidden from, and no row finds another one.
            if (lost < 40) CHECK(y.isnan().any(-1).equal(want.expand_as(rows)));
          }
}

TEST_CASE("padding does not count among the keys of the sigmoid's offset", "[weight_map]") {
  WeightMap map;
  map.kind = Kind::kSigmoid;
  for (const auto backend : {Backend::kAuto, Backend::kEager})
    for (const bool alibi_too : {false, true}) {
      INFO("backend " << static_cast<int>(backend) << (alibi_too ? ", alibi" : ""));
      torch::manual_seed(8);
      const auto in = inputs(6, 6);
      const Alibi alibi(3, at::kDouble);
      HeadContext context, alone;
      context.mask.key_length = at::tensor({int64_t{6}, int64_t{2}});
      if (alibi_too) context.position_bias = alone.position_bias = &alibi;
      context.backend = alone.backend = backend;
      const auto y = attend(in.q, in.k, in.v, call_with(map, context), 0.9);
      const auto of = [](const Tensor& t) { return t.narrow(0, 1, 1).narrow(2, 0, 2); };
      const auto want = attend(of(in.q), of(in.k), of(in.v), call_with(map, alone), 0.9);
      CHECK(difference(of(y), want) < 1e-12);
    }
}

// As the authors' code does (tests/golden/sigmoid/bidirectional_padding_gates).
TEST_CASE("keys that a mask hides count in the sigmoid's offset", "[weight_map]") {
  WeightMap map, given;
  map.kind = given.kind = Kind::kSigmoid;
  given.offset = -std::log(6.);
  for (const auto backend : {Backend::kAuto, Backend::kEager}) {
    const auto in = inputs(6, 6);
    HeadContext context;
    context.mask.allowed = (at::arange(6) < 4).view({1, 1, 1, 6});
    context.backend = backend;
    const auto y = attend(in.q, in.k, in.v, call_with(map, context), 0.9);
    CHECK(difference(y, attend(in.q, in.k, in.v, call_with(given, context), 0.9)) < 1e-12);
  }
}

TEST_CASE("a sink refuses the path that has no log-sum-exp", "[weight_map]") {
  const auto in = inputs(4, 6);
  WeightMap map;
  map.sink = at::tensor({0.3, -1., 2.}, at::kDouble);
  HeadContext context;
  context.backend = Backend::kSdpa;
  CHECK_THROWS_WITH(attend(in.q, in.k, in.v, call_with(map, context), 1),
                    Catch::Contains("backend sdpa: gives no log-sum-exp"));
  context.backend = Backend::kFlash;
  const auto flash = attend(in.q, in.k, in.v, call_with(map, context), 1);
  context.backend = Backend::kEager;
  CHECK(difference(flash, attend(in.q, in.k, in.v, call_with(map, context), 1)) < 1e-12);
}

}  // namespace headlab::test_weight_map
