// Talking heads: reductions, the formula written out, statistics, options.
#include "experiments/analysis/maps/patterns.h"
#include "tests/layers_testing.h"

namespace headlab::test_talking {
using namespace testing;

namespace {

const char* const kRich = ", bias: true, qk_norm: true, scale: 0.3";

}  // namespace

TEST_CASE("talking heads start as multi-head attention", "[talking]") {
  const auto& kind = head_kind("talking");
  const auto fresh = kind.make(small_shape(), *kind.options());
  REQUIRE(at::equal(fresh->named_parameters()["pre"], at::eye(4)));
  REQUIRE(at::equal(fresh->named_parameters()["post"], at::eye(4)));

  const auto mha = make_layer("mha", small_shape(4, 2), kRich);
  const auto x = random({kBatch, kTokens, 20});
  const Rotary rotary;
  auto ctx = masked_context();
  ctx.rotary = &rotary;
  ctx.mask.window = 4;
  for (const char* options :
       {"", ", mix_bias: true", ", pre: false", ", post: false", ", pre: false, post: false"}) {
    const auto talking = make_layer("talking", small_shape(4, 2), std::string(kRich) + options);
    copy_weights(talking, mha);
    for (const auto& item : talking->named_parameters()) {
      if (item.key() == "pre" || item.key() == "post") set(talking, item.key(), at::eye(4));
      if (item.key() == "post_bias") set(talking, item.key(), at::zeros({4}));
    }
    INFO(options);
    REQUIRE(difference(talking->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
    REQUIRE(difference(map_of(*talking, x, ctx), map_of(*mha, x, ctx)) < 1e-12);
  }
}

TEST_CASE("talking heads mix scores, then bias and mask, then weights, then mask", "[talking]") {
  const auto talking = make_layer("talking", small_shape(), ", mix_bias: true");
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = masked_context();
  const Alibi alibi(4, at::kDouble);
  ctx.position_bias = &alibi;
  const auto p = talking->named_parameters();
  const auto split = [&](const char* name) {
    return split_heads(at::linear(x, p[name]), 4);  // [B,4,T,6]
  };
  const auto z = at::matmul(split("q.weight"), split("k.weight").transpose(2, 3)) / std::sqrt(6.);
  // Index [from, to].
  auto mixed = at::einsum("bhij,hg->bgij", {z, p["pre"]}) + p["pre_bias"].view({4, 1, 1});
  mixed = mixed + ctx.bias;
  const auto distance = at::arange(7).unsqueeze(1) - at::arange(7);
  mixed = mixed - alibi_slopes(4).to(at::kDouble).view({4, 1, 1}) * distance.abs();
  const auto allowed = ctx.mask.allowed & (distance >= 0);
  const auto weights = masked_softmax(mixed, allowed);
  const auto a =
      (at::einsum("bhij,hg->bgij", {weights, p["post"]}) + p["post_bias"].view({4, 1, 1}))
          .masked_fill(allowed.logical_not(), 0);
  REQUIRE(difference(map_of(*talking, x, ctx), a) < 1e-12);
  REQUIRE(a.min().item<double>() < 0);
  const auto heads = at::matmul(a, split("v.weight")).transpose(1, 2).reshape({kBatch, 7, 24});
  REQUIRE(difference(talking->forward(x, ctx).y, at::linear(heads, p["o.weight"])) < 1e-12);
}

TEST_CASE("talking heads may be permuted everywhere", "[talking]") {
  const auto one = make_layer("talking", small_shape(), ", mix_bias: true, o_bias: true");
  const auto other = make_layer("talking", small_shape(), ", mix_bias: true, o_bias: true");
  const auto order = at::tensor({2, 0, 3, 1}, at::kLong);
  const auto rows = (order.unsqueeze(1) * 6 + at::arange(6)).flatten();
  const auto p = one->named_parameters();
  for (const char* name : {"q.weight", "k.weight", "v.weight"})
    set(other, name, p[name].index_select(0, rows));
  set(other, "o.weight", p["o.weight"].index_select(1, rows));
  set(other, "o.bias", p["o.bias"]);
  for (const char* name : {"pre", "post"})
    set(other, name, p[name].index_select(0, order).index_select(1, order));
  for (const char* name : {"pre_bias", "post_bias"})
    set(other, name, p[name].index_select(0, order));
  const auto x = random({kBatch, kTokens, 20});
  REQUIRE(difference(one->forward(x, causal()).y, other->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("a post mixing of c times the identity scales what is said", "[talking]") {
  const auto talking = make_layer("talking", small_shape(), ", o_bias: true");
  const auto x = random({kBatch, kTokens, 20});
  const auto bias = talking->named_parameters()["o.bias"];
  set(talking, "post", at::eye(4));
  const auto plain = talking->forward(x, causal()).y - bias;
  set(talking, "post", at::eye(4) * -2.5);
  REQUIRE(difference(talking->forward(x, causal()).y - bias, plain * -2.5) < 1e-12);
}

TEST_CASE("the bias of the score mixing never matters", "[talking]") {
  const auto talking = make_layer("talking", small_shape(), ", mix_bias: true");
  const auto x = random({kBatch, kTokens, 20});
  const auto y = talking->forward(x, causal()).y;
  (y * random(y.sizes())).sum().backward();
  REQUIRE(talking->named_parameters()["pre_bias"].grad().abs().max().item<double>() < 1e-12);
  set(talking, "pre_bias", random({4}) * 3);
  REQUIRE(difference(talking->forward(x, causal()).y, y) < 1e-12);
}

TEST_CASE("talking heads promise what their mixings leave", "[talking]") {
  const auto traits = [](const char* options) {
    return make_layer("talking", small_shape(), options)->traits();
  };
  REQUIRE_FALSE(traits("").independent);
  REQUIRE_FALSE(traits("").rows_sum_to_one);
  REQUIRE(traits(", post: false").rows_sum_to_one);
  REQUIRE_FALSE(traits(", post: false").independent);
  REQUIRE_FALSE(traits(", pre: false").rows_sum_to_one);
  REQUIRE(traits(", pre: false, post: false").independent);
  REQUIRE(traits(", pre: false, post: false").rows_sum_to_one);

  // A gate leaves the head in the mixings, the mask takes it out of them.
  const auto x = random({kBatch, kTokens, 20});
  for (const char* options : {"", ", pre: false", ", post: false", ", pre: false, post: false"}) {
    const auto talking = make_layer("talking", small_shape(), options);
    auto ctx = causal();
    ctx.gates = at::tensor({1., 0., 1., 1.}, at::kDouble).view({1, 4, 1});
    const auto gated = talking->forward(x, ctx).y;
    talking->mask_heads({1});
    const double apart = difference(gated, talking->forward(x, causal()).y);
    INFO(options);
    REQUIRE((apart < 1e-12) == talking->traits().independent);
  }
}

TEST_CASE("statistics of talking heads are of both maps", "[talking]") {
  const auto talking = make_layer("talking", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({7, 5}, at::kLong);
  const auto got = statistics_of(*talking, x, ctx);
  const auto a = map_of(*talking, x, ctx);
  const auto post = talking->named_parameters()["post"].detach();
  // With the inverse of the mixing behind it the map is the softmax again.
  const auto p = at::einsum("bhij,hg->bgij", {a, at::linalg_inv(post)});
  HeadSums sums(4);
  MapContext context;
  context.allowed = allowed_keys(ctx.mask, 7, 7, at::kCPU);
  context.query_length = context.key_length = ctx.mask.query_length;
  context.causal = true;
  add_patterns(sums, p.clamp_min(0), context);
  const auto want = head_values(sums);
  for (const char* name : {"entropy", "max_weight", "mean_distance", "first_token", "js"})
    for (size_t n = 0; n < want.at(name).size(); ++n) {
      INFO(name << " " << n);
      REQUIRE(got.at(name)[n] == Approx(want.at(name)[n]).margin(1e-8));
    }
  for (int64_t h = 0; h < 4; ++h) {
    double sum = 0, negative = 0;
    for (int64_t b = 0; b < 2; ++b) {
      const auto rows = a[b][h].narrow(0, 0, b == 0 ? 7 : 5);
      sum += rows.sum().item<double>();
      negative -= rows.clamp_max(0).sum().item<double>();
    }
    REQUIRE(got.at("composed_row_sum")[h] == Approx(sum / 12));
    REQUIRE(got.at("composed_negative_mass")[h] == Approx(negative / 12));
  }
}

TEST_CASE("the mass off the diagonal is of the heads that are there", "[talking]") {
  const auto talking = make_layer("talking", small_shape());
  set(talking, "pre", at::eye(4) * -3 + at::ones({4, 4}));  // diagonal -2, else 1
  set(talking, "post", at::eye(4));
  const auto x = random({kBatch, kTokens, 20});
  auto values = statistics_of(*talking, x, causal());
  REQUIRE(values["pre_off_diagonal"] == std::vector<double>{12. / 20});
  REQUIRE(values["post_off_diagonal"] == std::vector<double>{0});
  talking->mask_heads({0, 2});
  REQUIRE(statistics_of(*talking, x, causal())["pre_off_diagonal"] == std::vector<double>{2. / 6});
  REQUIRE(statistics_of(*talking->slice(), x, causal())["pre_off_diagonal"] ==
          std::vector<double>{2. / 6});
  for (const char* options : {"", ", pre: false", ", post: false", ", pre: false, post: false"}) {
    const auto layer = make_layer("talking", small_shape(), options);
    values = statistics_of(*layer, x, causal());
    INFO(options);
    for (const auto& own : layer->own_statistics()) REQUIRE(values.count(own.name) == 1);
  }
}

TEST_CASE("a mixing costs 2 H^2 operations a pair", "[talking]") {
  const auto mha = make_layer("mha", small_shape());
  const auto cost = [&](const char* options) {
    return make_layer("talking", small_shape(), options)->flops(7, 7, 28) - mha->flops(7, 7, 28);
  };
  REQUIRE(cost("") == 2 * 2 * 16 * 28);
  REQUIRE(cost(", pre: false") == 2 * 16 * 28);
  REQUIRE(cost(", pre: false, post: false") == 0);
}

TEST_CASE("wrong options of talking heads have a place", "[talking]") {
  REQUIRE_THROWS_WITH(
      make_layer("talking", small_shape(), ", pre: false, post: false, mix_bias: true"),
      Catch::Contains("test:1:") && Catch::Contains("attention.mix_bias: there is no mixing"));
  REQUIRE_THROWS_WITH(make_layer("talking", small_shape(), ", prae: false"),
                      Catch::Contains("did you mean 'pre'"));
}

}  // namespace headlab::test_talking
