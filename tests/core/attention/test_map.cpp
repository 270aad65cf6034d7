// Maps of scores to weights: their formulas and their paths.
#include <cmath>
#include <functional>

#include "core/attention/composed/composition.h"
#include "core/attention/maps/map.h"
#include "tests/isa_testing.h"
#include "tests/layers_testing.h"
#include "variants/entmax/alpha_entmax.h"

namespace headlab::test_map {
using namespace testing;

namespace {

// A map and its rows, as the equations say them: z [n] over the allowed keys of head h, of S keys.
struct Named {
  std::string options;  // as in a config
  std::function<Tensor(const Tensor& z, int64_t h, int64_t S)> row;
  double divisor = 0;   // row i is divided by (i + 1) to this power
  Tensor learned = {};  // [H]

  MapPtr map() const {
    const auto map = make_map(options);
    return learned.defined() ? map->with_learned(learned) : map;
  }
  bool is_softmax() const { return map()->as_softmax(); }
};

// H = 3 heads.
std::vector<Named> all_maps() {
  const auto softpick = [](const Tensor& z, int64_t, int64_t) {
    return at::relu(z.exp() - 1) / (z.exp() - 1).abs().sum();
  };
  const auto sigmoid = [](std::optional<double> offset) {
    return [offset](const Tensor& z, int64_t, int64_t S) {
      return 1 / (1 + (-z - offset.value_or(-std::log(S))).exp());
    };
  };
  const auto sinks = at::tensor({0.3, -1., 2.}, at::kDouble).requires_grad_();
  const auto raw = at::logit(at::tensor({0.2, 0.5, 0.9}, at::kDouble)).requires_grad_();
  std::vector<Named> maps{{"softpick", softpick},
                          {"sigmoid", sigmoid({})},
                          {"sink",
                           [sinks](const Tensor& z, int64_t h, int64_t) {
                             return z.exp() / (z.exp().sum() + sinks[h].exp());
                           },
                           0, sinks},
                          {"{kind: entmax, learn_alpha: true}",
                           [raw](const Tensor& z, int64_t h, int64_t) {
                             return entmax(z, {}, 1 + raw[h].sigmoid().item<double>());
                           },
                           0, raw}};
  for (double alpha : {1., 1.3, 1.5, 2., 2.5})
    maps.push_back({"{kind: entmax, alpha: " + std::to_string(alpha) + "}",
                    [alpha](const Tensor& z, int64_t, int64_t) { return entmax(z, {}, alpha); }});
  maps.push_back({"{kind: sigmoid, offset: -0.7, normalize: sqrt}", sigmoid(-0.7), 0.5});
  maps.push_back({"{kind: sigmoid, offset: -0.7, normalize: length}", sigmoid(-0.7), 1});
  return maps;
}

HeadCall call_with(const MapPtr& map, const HeadContext& context = {}) {
  auto call = HeadCall::from_context(context);
  call.map = map;
  return call;
}

Tensor by_definition(const Tensor& z, const Tensor& allowed, const Named& map) {
  const auto a = at::zeros_like(z);
  const int64_t T = z.size(2), S = z.size(3);
  for (int64_t b = 0; b < z.size(0); ++b)
    for (int64_t h = 0; h < z.size(1); ++h)
      for (int64_t i = 0; i < T; ++i) {
        const auto seen = allowed.expand_as(z)[b][h][i].nonzero().squeeze(1);
        if (seen.numel() == 0) continue;
        const auto w = map.row(z[b][h][i].index_select(0, seen), h, S).detach();
        a[b][h][i].index_copy_(0, seen,
                               w / std::pow(static_cast<double>(S - T + i + 1), map.divisor));
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
                                   const Composition& pre, const Composition& post,
                                   const Tensor& learned) {
  call.backend = backend;
  const auto y = composed_attend(in.q, in.k, in.v, pre, post, call, 0.9).out;
  torch::manual_seed(3);
  auto wanted = in.all();
  if (learned.defined()) wanted.push_back(learned);
  for (auto& t : wanted) t.mutable_grad() = Tensor();
  (y * at::randn(y.sizes(), y.options())).sum().backward();  // whatever the strides of y
  std::vector<Tensor> all{y.detach()};
  for (const auto& t : wanted) all.push_back(t.grad());
  return all;
}

}  // namespace

TEST_CASE("each map is what its equation says", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const auto& map : all_maps()) {
    INFO(map.options);
    const auto call = call_with(map.map());
    const auto z = at::randn({2, 3, 5, 7}, at::kDouble) * 2;
    auto allowed = at::rand({2, 3, 5, 7}) < 0.6;
    allowed[1][2][3].fill_(false);
    const auto a = weights_of(z, allowed, call);
    CHECK(difference(a, by_definition(z, allowed, map)) < 1e-7);
    const auto all = at::ones({5, 7}, at::kBool);
    CHECK(difference(weights_of(z, {}, call), by_definition(z, all, map)) < 1e-7);
  }
}

TEST_CASE("large scores overflow in no map, and rows of negative ones have finite gradients",
          "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const auto& map : all_maps())
    for (double shift : {-800., 0., 800.})
      for (auto backend : {Backend::kAuto, Backend::kEager}) {
        INFO(map.options << " " << shift);
        const auto in = inputs(4, 6, at::kFloat);
        HeadContext context;
        context.bias = at::full({1, 1, 4, 6}, shift, at::kFloat);
        for (const auto& found :
             with_gradients(in, call_with(map.map(), context), backend, {}, {}, map.learned))
          CHECK(found.isfinite().all().item<bool>());
      }
}

TEST_CASE("blocks of rows give what the whole map gives, gradients included", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto mixing = [] { return at::eye(3, at::kDouble) + at::randn({3, 3}, at::kDouble) * 0.4; };
  for (const auto& map : all_maps())
    for (const bool composed : {false, true})
      for (const auto& [T, S] :
           std::vector<std::pair<int64_t, int64_t>>{{7, 7}, {19, 33}, {1, 40}}) {
        torch::manual_seed(T);
        INFO(map.options << ", T = " << T << (composed ? ", composed" : ""));
        const auto in = inputs(T, S);
        HeadContext context;
        context.mask.causal = true;
        context.mask.window = T == 19 ? 9 : 0;
        context.mask.key_length = at::tensor({S, S - 3});
        if (T == 7) context.mask.allowed = at::rand({2, 3, T, S}) < 0.8;
        if (T == 19) context.bias = at::randn({1, 3, T, S}, at::kDouble);
        const auto pre = composed ? Composition::by_matrix(mixing(), {}, {}) : Composition(),
                   post = composed ? Composition::by_matrix(mixing(), {}, {}) : Composition();
        const auto call = call_with(map.map(), context);
        const auto rows = with_gradients(in, call, Backend::kAuto, pre, post, map.learned),
                   whole = with_gradients(in, call_with(map.map(), context), Backend::kEager, pre,
                                          post, map.learned);
        for (size_t n = 0; n < rows.size(); ++n) {
          INFO("tensor " << n);
          CHECK(relative_difference(rows[n], whole[n]) < 2e-7);
        }
      }
}

TEST_CASE("float rows are as good as float maps", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const auto& map : all_maps()) {
    if (map.learned.defined()) continue;
    INFO(map.options);
    torch::manual_seed(5);
    const auto in = inputs(21, 50, at::kFloat);
    HeadContext context;
    context.mask.causal = true;
    const auto call = call_with(map.map(), context);
    const auto rows = with_gradients(in, call, Backend::kAuto, {}, {}, {}),
               whole = with_gradients(in, call, Backend::kEager, {}, {}, {});
    for (size_t n = 0; n < rows.size(); ++n) CHECK(relative_difference(rows[n], whole[n]) < 3e-5);
  }
}

TEST_CASE("keys whose score is 0 get no weight by softpick, and no gradient goes to them",
          "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  torch::manual_seed(6);
  for (const auto type : {at::kFloat, at::kDouble})
    for (const auto backend : {Backend::kAuto, Backend::kEager}) {
      INFO(at::toString(type));
      const int64_t T = 40, S = 61, zeros = 30;  // so many keys lie across all queries
      auto in = inputs(T, S, type);
      {
        at::NoGradGuard no_grad;
        in.q.narrow(3, 1, 4).zero_();
        in.k.narrow(2, 0, zeros).select(3, 0).zero_();
        in.k.narrow(2, zeros, S - zeros).narrow(3, 1, 4).zero_();
      }
      const auto found = with_gradients(in, call_with(make_map("softpick")), backend, {}, {}, {});
      CHECK(found[1].narrow(3, 1, 4).abs().max().item<double>() == 0);      // of the queries
      CHECK(found[3].narrow(2, 0, zeros).abs().max().item<double>() == 0);  // of their values
    }
}

TEST_CASE("uniform heads weigh what they may see by 1 / n, whatever the map", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const auto& map : all_maps())
    for (auto backend : {Backend::kAuto, Backend::kEager}) {
      INFO(map.options);
      const auto in = inputs(4, 6);
      HeadContext context;
      context.mask.causal = true;
      context.uniform = at::tensor({0, 1, 0}).to(at::kBool);
      context.backend = backend;
      const auto y = attend(in.q, in.k, in.v, call_with(map.map(), context), 0.9);
      for (int64_t i = 0; i < 4; ++i)
        CHECK(difference(y[0][1][i], in.v[0][1].narrow(0, 0, i + 3).mean(0)) < 1e-12);
    }
}

TEST_CASE("maps that are no softmax are refused where only the softmax is served", "[map]") {
  const auto in = inputs(4, 6);
  for (const auto& map : all_maps()) {
    if (map.is_softmax()) continue;
    HeadContext context;
    context.backend = Backend::kFlash;
    CHECK_THROWS_WITH(attend(in.q, in.k, in.v, call_with(map.map(), context), 1),
                      Catch::Contains("maps other than the softmax"));
  }
}

TEST_CASE("scores that are no numbers make rows of NaN in every map", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto mixing = at::eye(3, at::kDouble) + 0.3 * at::ones({3, 3}, at::kDouble);
  for (const auto& map : all_maps())
    for (const bool composed : {false, true})
      for (const int64_t lost : {0, 11, 40})  // queries; or, behind the last one, a key
        for (const auto type : {at::kDouble, at::kFloat})
          for (const auto backend : {Backend::kAuto, Backend::kEager}) {
            INFO(map.options << (composed ? ", composed" : "") << ", row " << lost << ", backend "
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
            auto call = call_with(map.map(), context);
            call.backend = backend;
            const auto c =
                composed ? Composition::by_matrix(mixing.to(type), {}, {}) : Composition();
            if (map.learned.defined())
              call.map = call.map->with_learned(map.learned.detach().to(type));
            const auto y = composed_attend(in.q, in.k, in.v, c, c, call, 0.9).out;
            const auto rows = y.isnan().all(-1);  // [B,H,T]
            const auto seen = at::arange(40);
            const auto want = lost < 40 ? seen == lost : seen >= 20;
            CHECK((rows | want.logical_not()).all().item<bool>());
            // A kernel may find a key in rows that it is hidden from, and no row finds another one.
            if (lost < 40) CHECK(y.isnan().any(-1).equal(want.expand_as(rows)));
          }
}

TEST_CASE("padding does not count among the keys of the sigmoid's offset", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto map = make_map("sigmoid");
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
TEST_CASE("keys that a mask hides count in the sigmoid's offset", "[map]") {
  HEADLAB_WITH_EVERY_ISA;
  const auto map = make_map("sigmoid"),
             given = make_map("{kind: sigmoid, offset: -1.791759469228055}");  // -ln 6
  for (const auto backend : {Backend::kAuto, Backend::kEager}) {
    const auto in = inputs(6, 6);
    HeadContext context;
    context.mask.allowed = (at::arange(6) < 4).view({1, 1, 1, 6});
    context.backend = backend;
    const auto y = attend(in.q, in.k, in.v, call_with(map, context), 0.9);
    CHECK(difference(y, attend(in.q, in.k, in.v, call_with(given, context), 0.9)) < 1e-12);
  }
}

TEST_CASE("a sink refuses the path that has no log-sum-exp", "[map]") {
  const auto in = inputs(4, 6);
  const auto map = std::make_shared<Softmax>(at::tensor({0.3, -1., 2.}, at::kDouble));
  HeadContext context;
  context.backend = Backend::kSdpa;
  CHECK_THROWS_WITH(attend(in.q, in.k, in.v, call_with(map, context), 1),
                    Catch::Contains("backend sdpa: gives no log-sum-exp"));
  context.backend = Backend::kFlash;
  const auto flash = attend(in.q, in.k, in.v, call_with(map, context), 1);
  context.backend = Backend::kEager;
  CHECK(difference(flash, attend(in.q, in.k, in.v, call_with(map, context), 1)) < 1e-12);
}

}  // namespace headlab::test_map
