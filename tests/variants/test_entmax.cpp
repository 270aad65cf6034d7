// Entmax as a function (definition, limits, gradients) and as a kind of heads.
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "experiments/analysis/maps/patterns.h"
#include "tests/isa_testing.h"
#include "tests/layers_testing.h"
#include "variants/entmax/alpha_entmax.h"

namespace headlab::test_entmax {
using namespace testing;

namespace {

Tensor row(std::vector<double> values) { return at::tensor(values, at::kDouble); }

Tensor of_heads(std::vector<double> alphas) {  // [H,1,1]
  return at::tensor(alphas, at::kDouble).view({-1, 1, 1});
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows of scores z [...,S] by the kernel of the path by blocks of rows.
template <class T>
Tensor rows_by_kernel(const Tensor& z, double alpha, const RowFunctions<T>& functions) {
  const int64_t S = z.size(-1), padded = (S + kRowLanes - 1) / kRowLanes * kRowLanes;
  auto rows = at::constant_pad_nd(z, {0, padded - S}, -kInfinity).contiguous();
  std::array<T, 2> saved{};
  for (int64_t row = 0; row < rows.numel() / padded; ++row)
    functions.weigh(rows.mutable_data_ptr<T>() + row * padded, padded, static_cast<T>(alpha),
                    saved.data());
  return rows.narrow(-1, 0, S);
}
Tensor by_kernel(const Tensor& z, double alpha) {
  const auto map = entmax_row_map(alpha);
  return z.scalar_type() == at::kDouble ? rows_by_kernel(z, alpha, map.f64)
                                        : rows_by_kernel(z, alpha, map.f32);
}

}  // namespace

TEST_CASE("entmax has its printed values", "[entmax]") {
  const auto z = row({1, .5, 0, -1});
  const auto near = [&](double alpha, std::vector<double> want) {
    INFO("alpha " << alpha);
    REQUIRE(difference(entmax(z, {}, alpha), row(want)) < 5e-7);
    if (alpha > 1) REQUIRE(difference(by_kernel(z, alpha), row(want)) < 5e-7);
  };
  near(1, {.473991, .287490, .174371, .064148});
  near(1.3, {.565918, .294513, .130615, .008954});
  near(1.5, {.624198, .291667, .084136, 0});
  near(2, {.75, .25, 0, 0});
}

TEST_CASE("entmax keeps its definition at every alpha", "[entmax]") {
  const auto z = random({2, 3, 5, 11}) * 2;
  for (double alpha : {1.01, 1.1, 1.3, 1.5, 1.9, 2., 2.5, 4.}) {
    const auto p = entmax(z, {}, alpha);
    INFO("alpha " << alpha);
    REQUIRE(p.min().item<double>() >= 0);
    REQUIRE(difference(p.sum(-1), at::ones({2, 3, 5}, at::kDouble)) < 1e-12);
    // (alpha-1) z - p^(alpha-1) is tau on the support and at most tau off it.
    const auto taus = (alpha - 1) * z - p.pow(alpha - 1), off = p == 0;
    const auto tau = std::get<0>(taus.masked_fill(off, -1e9).max(-1, true));
    // Above 2 the weights rise without bound at the edge of the support.
    const double rounding = alpha > 2 ? 1e-7 : 1e-11;
    REQUIRE(((taus - tau).masked_fill(off, 0)).abs().max().item<double>() < rounding);
    REQUIRE((taus - tau).max().item<double>() < rounding);
    REQUIRE((alpha < 1.2 || off.any().item<bool>()));
    // Sorting and Newton's steps find the same.
    REQUIRE(difference(p, entmax(z, {}, at::full({1}, alpha, at::kDouble))) < 1e-12);
  }
  const auto by_head = entmax(z, {}, of_heads({1.2, 1.5, 2}));
  for (int64_t h : {0, 1, 2})
    REQUIRE(difference(by_head.select(1, h),
                       entmax(z.select(1, h), {}, h == 0 ? 1.2 : (h == 1 ? 1.5 : 2))) < 1e-12);
}

TEST_CASE("the kernel of entmax agrees with operations of torch on rows of any length",
          "[entmax]") {
  HEADLAB_WITH_EVERY_ISA;
  for (int64_t S : {1, 7, 8, 9, 16, 17, 130})
    for (double spread : {0., 0.1, 30.})
      for (double alpha : {1.0001, 1.3, 1.5, 1.97, 2.})
        for (auto type : {at::kDouble, at::kFloat}) {
          INFO(S << " keys, spread " << spread << ", alpha " << alpha << ", " << type);
          const auto z = (random({40, S}) * spread).to(type), allowed = at::rand({40, S}) < 0.8;
          REQUIRE(difference(by_kernel(z.masked_fill(allowed.logical_not(), -kInfinity), alpha),
                             entmax(z, allowed, alpha)) < (type == at::kDouble ? 1e-12 : 1e-5));
        }
}

TEST_CASE("a key far above the others has all the weight, however many there are", "[entmax]") {
  HEADLAB_WITH_EVERY_ISA;
  for (auto type : {at::kDouble, at::kFloat})
    for (double alpha : {1.5, 2.})
      for (bool kernel : {false, true})
        for (int64_t S = 1; S <= 500; S += S < 40 ? 1 : 23) {
          INFO(S << " keys, alpha " << alpha << ", " << type << (kernel ? ", the kernel" : ""));
          const auto z = at::full({1, S}, -60., type);
          z.select(1, 0).fill_(30);
          const auto p = kernel ? by_kernel(z, alpha) : entmax(z, {}, alpha);
          REQUIRE(difference(p, at::eye(1, S, type)) < 1e-6);
        }
}

TEST_CASE("entmax becomes the softmax as alpha goes to one", "[entmax]") {
  const auto z = random({40, 13}) * 3;
  const auto softmax = at::softmax(z, -1);
  REQUIRE(at::equal(entmax(z, {}, 1), softmax));
  double before = 1;
  for (double alpha : {1.1, 1.01, 1.001, 1 + 1e-6, 1 + 1e-9}) {
    const double apart = difference(entmax(z, {}, alpha), softmax);
    INFO("alpha " << alpha);
    REQUIRE(apart < before);
    before = apart;
  }
  REQUIRE(before < 1e-7);
  const auto single = entmax(z.to(at::kFloat), {}, 1 + 1e-6);
  REQUIRE(difference(single.to(at::kDouble), softmax) < 1e-4);
}

TEST_CASE("sparsemax is the projection onto the simplex", "[entmax]") {
  const auto z = random({200, 6}) * 1.5;
  const auto p = entmax(z, {}, 2);
  // The one point from which no point of the simplex lies towards z.
  for (int n = 0; n < 20; ++n) {
    const auto other = at::softmax(random({200, 6}) * (n % 5 + 1), -1);
    REQUIRE(((z - p) * (other - p)).sum(-1).max().item<double>() < 1e-12);
  }
  for (int64_t corner = 0; corner < 6; ++corner) {
    const auto other = at::one_hot(at::full({200}, corner, at::kLong), 6);
    REQUIRE(((z - p) * (other - p)).sum(-1).max().item<double>() < 1e-12);
  }
}

TEST_CASE("a constant changes nothing, and scaling up never widens the support", "[entmax]") {
  const auto z = random({100, 9});
  for (double alpha : {1.3, 1.5, 2., 3.}) {
    INFO("alpha " << alpha);
    const auto p = entmax(z, {}, alpha);
    REQUIRE(difference(entmax(z + 1000, {}, alpha), p) < 1e-9);
    auto support = (p > 0).sum(-1);
    for (double factor : {1.5, 3., 10., 1e6}) {
      const auto narrower = (entmax(z * factor, {}, alpha) > 0).sum(-1);
      REQUIRE((narrower <= support).all().item<bool>());
      support = narrower;
    }
    REQUIRE(support.max().item<int64_t>() == 1);
    for (double huge : {1e30, -1e30})
      REQUIRE(entmax(row({huge, 0, 1}), {}, alpha).isfinite().all().item<bool>());
  }
}

TEST_CASE("equal scores have equal weights and finite gradients", "[entmax]") {
  for (double alpha : {1.2, 1.5, 2.}) {
    for (auto scores : {row({0, 0, 0, 0}), row({2, 2, 0, 0}), row({1, 0, 0, -1}),
                        row({1. / 3, -2. / 3, -2. / 3, -2. / 3}), row({5})}) {
      INFO("alpha " << alpha << ", scores " << scores);
      auto z = scores.clone().requires_grad_();
      const auto p = entmax(z, {}, alpha);
      (p * random(p.sizes())).sum().backward();
      REQUIRE(z.grad().isfinite().all().item<bool>());
      REQUIRE(z.grad().sum().abs().item<double>() < 1e-12);
      for (int64_t i = 0; i < z.size(0); ++i)
        for (int64_t j = 0; j < i; ++j)
          if (scores[i].item<double>() == scores[j].item<double>())
            REQUIRE(p[i].item<double>() == p[j].item<double>());
    }
  }
}

TEST_CASE("hidden keys take no part", "[entmax]") {
  auto allowed = at::rand({2, 1, 5, 9}) < 0.6;
  allowed[0][0][3].fill_(false);
  for (auto type : {at::kDouble, at::kFloat})
    for (double alpha : {1., 1.3, 1.5, 2., 3.}) {
      INFO("alpha " << alpha << " in " << type);
      auto z = random({2, 3, 5, 9}).mul_(2).to(type);
      z.masked_fill_(allowed.logical_not(), 1e4).requires_grad_();
      const auto p = entmax(z, allowed, alpha);
      const auto g = random(p.sizes()).to(type);
      (p * g).sum().backward();
      REQUIRE(p.scalar_type() == type);
      REQUIRE(z.grad().isfinite().all().item<bool>());
      REQUIRE(z.grad().masked_select(allowed.logical_not()).abs().max().item<double>() == 0);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < 5; ++i) {
          const auto keys = allowed[b][0][i].nonzero().flatten();
          const auto hidden = allowed[b][0][i].logical_not().nonzero().flatten();
          const auto weights = p.select(0, b).select(1, i);  // [3,9]
          REQUIRE(weights.index_select(1, hidden).abs().sum().item<double>() == 0);
          if (keys.numel() == 0) continue;
          const auto seen = z.detach().select(0, b).select(1, i).index_select(1, keys);
          // Above alpha 2 a weight is a root, steep at the edge of the support: what rounding does
          // to the threshold grows to its root, in the weight there and by their sum in all others.
          const double rounding = type == at::kDouble ? 1e-12 : 1e-5;
          REQUIRE(difference(weights.index_select(1, keys), entmax(seen, {}, alpha)) <
                  std::pow(rounding, 1 / std::max(1.0, alpha - 1)));
        }
    }
  // A mask that broadcasts along the keys.
  const auto z = random({1, 1, 2, 4});
  const auto rows = (at::arange(2) == 0).view({1, 1, 2, 1});
  const auto p = entmax(z, rows, 1.3);
  REQUIRE(difference(p[0][0][0], entmax(z[0][0][0], {}, 1.3)) < 1e-12);
  REQUIRE(p[0][0][1].abs().sum().item<double>() == 0);
}

TEST_CASE("the gradients of entmax agree with central differences", "[entmax]") {
  for (double alpha : {1.05, 1.2, 1.5, 1.8, 2., 2.5}) {
    INFO("alpha " << alpha);
    auto z = random({2, 3, 4, 6}).requires_grad_();
    auto alphas = of_heads({alpha, alpha, 1.4}).requires_grad_();
    const auto allowed = at::rand({2, 3, 4, 6}) < 0.8;
    const auto g = random({2, 3, 4, 6});
    const auto loss = [&] { return (entmax(z, allowed, alphas) * g).sum(); };
    loss().backward();
    at::NoGradGuard no_grad;
    for (auto& subject : {z, alphas}) {
      const auto direction = random(subject.sizes());
      const double slope = (subject.grad() * direction).sum().item<double>(), step = 1e-6;
      auto moved = subject;
      moved.add_(direction, step);
      const double above = loss().item<double>();
      moved.add_(direction, -2 * step);
      const double below = loss().item<double>();
      moved.add_(direction, step);
      REQUIRE((above - below) / (2 * step) == Approx(slope).epsilon(1e-6).margin(1e-6));
    }
    // The exact ways share the backward pass.
    auto same = z.detach().clone().requires_grad_();
    {
      at::AutoGradMode grad(true);
      (entmax(same, allowed, alpha) * g).sum().backward();
    }
    REQUIRE(difference(same.grad().narrow(1, 0, 2), z.grad().narrow(1, 0, 2)) < 1e-9);
  }
}

TEST_CASE("autograd keeps one step of entmax", "[entmax]") {
  auto z = random({3, 5}).requires_grad_();
  for (double alpha : {1.3, 1.5, 2.}) {
    const auto step = entmax(z, at::ones({5}, at::kBool), alpha).grad_fn();
    REQUIRE(step->name().find("Entmax") != std::string::npos);
    REQUIRE(step->next_edge(0).function->next_edges().empty());  // z itself
  }
}

TEST_CASE("entmax in single precision stays near the double one", "[entmax]") {
  const auto z = random({30, 200}) * 2;
  for (double alpha : {1.01, 1.2, 1.5, 1.99, 2., 3.}) {
    INFO("alpha " << alpha);
    auto exact = z.clone().requires_grad_(), single = z.to(at::kFloat).requires_grad_();
    const auto p = entmax(exact, {}, alpha), q = entmax(single, {}, alpha);
    // Above 2 a weight has no bounded slope at the edge of the support, [..]_+ = p^(alpha-1) has.
    const double sharp = std::max(1., alpha - 1);
    REQUIRE(difference(p.pow(sharp), q.to(at::kDouble).pow(sharp)) < 1e-5);
    REQUIRE(difference(q.sum(-1), at::ones({30})) < 1e-5);
    if (alpha > 2) continue;  // unbounded at the edge of the support
    const auto g = random(z.sizes());
    (p * g).sum().backward();
    (q * g.to(at::kFloat)).sum().backward();
    REQUIRE(difference(exact.grad(), single.grad().to(at::kDouble)) < (alpha == 2 ? 0.05 : 1e-2));
  }
}

TEST_CASE("rows of NaN stay NaN at every alpha, by every algorithm", "[entmax]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const double alpha : {1., 1.01, 1.3, 1.5, 2., 2.5})
    for (const bool kernel : {false, true})
      for (const auto type : {at::kDouble, at::kFloat})
        for (const int64_t lost : {0, 4, 8}) {
          INFO("alpha " << alpha << ", entry " << lost);
          auto z = at::randn({3, 9}, type);
          z[1][lost] = std::nan("");
          if (kernel && (alpha == 1 || alpha > 2)) continue;
          const auto p = kernel ? by_kernel(z, alpha) : entmax(z, {}, alpha);
          CHECK(p[1].isnan().all().item<bool>());
          CHECK(p[0].isfinite().all().item<bool>());
          CHECK(p[2].isfinite().all().item<bool>());
        }
}

TEST_CASE("an alpha below its floor is led back to where it has a gradient", "[entmax]") {
  const auto layer = make_layer("entmax", small_shape(), ", learn_alpha: true");
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    layer->to(type);
    set(layer, "alpha", at::tensor({-9., 0.5, -4.7, 8.}).to(type));
    const auto gradient = [&] {
      layer->zero_grad();
      torch::manual_seed(2);
      const auto x = random({2, 7, 20}).to(type);
      (layer->forward(x, causal()).y * random({2, 7, 20}).to(type)).sum().backward();
      return parameter(layer, "alpha").grad();
    };
    CHECK(gradient()[0].item<double>() == 0);
    layer->after_step();
    const auto led_back = gradient();
    for (const int64_t h : {0, 2}) CHECK(led_back[h].item<double>() != 0);
    CHECK(parameter(layer, "alpha")[1].item<double>() == 0.5);
    CHECK(parameter(layer, "alpha")[3].item<double>() == 8);
  }
}

TEST_CASE("with alpha one entmax heads are multi-head attention", "[entmax]") {
  const auto mha = make_layer("mha", small_shape(4, 2), ", bias: true, qk_norm: true");
  const auto x = random({kBatch, kTokens, 20});
  const Rotary rotary;
  auto ctx = masked_context();
  ctx.rotary = &rotary;
  const auto apart = [&](const char* options) {
    const auto entmax = make_layer("entmax", small_shape(4, 2),
                                   std::string(", bias: true, qk_norm: true") + options);
    copy_weights(entmax, mha);
    return difference(entmax->forward(x, ctx).y, mha->forward(x, ctx).y);
  };
  REQUIRE(apart(", alpha: 1") == 0);
  REQUIRE(apart(", alpha: 1.0000001") < 1e-5);
  REQUIRE(apart(", alpha: 1.0001") < 1e-2);
  REQUIRE(apart(", alpha: 1.5") > 1e-3);
}

TEST_CASE("learned alphas lie between the floor and two", "[entmax]") {
  torch::manual_seed(1);
  const auto& kind = head_kind("entmax");
  auto options = kind.options();
  read_config(*options, parse_config("{learn_alpha: true}", "test"));
  const auto fresh = kind.make(small_shape(400, 400), *options)->named_parameters()["alpha"];
  REQUIRE(fresh.std().item<double>() == Approx(1).epsilon(0.15));
  REQUIRE(fresh.mean().abs().item<double>() < 0.2);

  const auto heads = make_layer("entmax", small_shape(), ", learn_alpha: true");
  set(heads, "alpha", row({-30, 30, 0, -4.7}));
  const auto x = random({kBatch, kTokens, 20});
  (heads->forward(x, causal()).y * random(x.sizes())).sum().backward();
  const auto gradient = heads->named_parameters()["alpha"].grad();
  REQUIRE(gradient.isfinite().all().item<bool>());
  REQUIRE(gradient[0].item<double>() == 0);  // below the floor
  REQUIRE(gradient[3].item<double>() == 0);
  REQUIRE(gradient[2].abs().item<double>() > 1e-6);
  const auto alphas = statistics_of(*heads, x, causal()).at("alpha");
  REQUIRE(alphas[0] == Approx(1.01));
  REQUIRE(alphas[1] == Approx(2));
  REQUIRE(alphas[2] == Approx(1.5));
  const auto fixed = make_layer("entmax", small_shape(), ", alpha: 1.5");
  copy_weights(fixed, heads);
  REQUIRE(difference(map_of(*heads, x, causal()).select(1, 2),
                     map_of(*fixed, x, causal()).select(1, 2)) < 1e-12);
}

TEST_CASE("statistics of entmax heads count the keys with weight", "[entmax]") {
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({7, 5}, at::kLong);
  for (const char* options : {", alpha: 1.7", ", learn_alpha: true", ", alpha: 1"}) {
    INFO(options);
    const auto heads = make_layer("entmax", small_shape(), options);
    set(heads, "q.weight", random({24, 20}) * 0.1);
    const auto values = statistics_of(*heads, x, ctx);
    const auto map = map_of(*heads, x, ctx).detach();
    HeadSums sums(4);
    MapContext context;
    context.allowed = allowed_keys(ctx.mask, 7, 7, at::kCPU);
    context.query_length = context.key_length = ctx.mask.query_length;
    context.causal = true;
    add_patterns(sums, map, context);
    const auto want = head_values(sums);
    for (const char* name : {"entropy", "max_weight", "mean_distance", "participation_ratio", "js"})
      for (size_t n = 0; n < want.at(name).size(); ++n) {
        INFO(name);
        REQUIRE(values.at(name)[n] == Approx(want.at(name)[n]).margin(1e-9));
      }
    for (int64_t h = 0; h < 4; ++h) {
      double support = 0, share = 0, one = 0;
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < (b == 0 ? 7 : 5); ++i) {
          const auto keys = (map[b][h][i] > 0).sum().item<double>();
          support += keys, share += keys / static_cast<double>(i + 1), one += keys == 1;
        }
      REQUIRE(values.at("support")[h] == Approx(support / 12));
      REQUIRE(values.at("support_share")[h] == Approx(share / 12));
      REQUIRE(values.at("support_one")[h] == Approx(one / 12));
    }
    for (const auto& own : heads->statistics()) REQUIRE(values.count(own.name) == 1);
  }
}

TEST_CASE("wrong options of entmax heads have a place", "[entmax]") {
  REQUIRE_THROWS_WITH(make_layer("entmax", small_shape(), ", alpha: 0.9"),
                      Catch::Contains("test:1:") && Catch::Contains("attention.alpha"));
  REQUIRE_THROWS_WITH(entmax(row({1, 2}), {}, 0.5), Catch::Contains("alpha must be at least 1"));
}

}  // namespace headlab::test_entmax
