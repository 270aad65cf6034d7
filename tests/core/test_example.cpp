// README's example of a kind of heads (example_head.cpp), that of docs/own_kind.md
// (own_kind_head.cpp), one without a map (recurrent_head.cpp), one with groups of its own
// (latent_head.cpp), a wrapper (scaled_head.cpp) and one with a map by option, of which there is
// one more than core's (own_map.cpp): this program has no other kinds and maps, and runs the laws
// of test_laws.cpp on them. Kinds whose keys are not their tokens are in test_example_keys.cpp, one
// that reads the link in test_example_link.cpp.
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
  REQUIRE(head_names() == std::vector<std::string>{"chosen_blocks", "first_values", "latent",
                                                   "mapped", "pooled", "recurrent", "scaled",
                                                   "temperature", "tempered"});
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

TEST_CASE("the example of docs/own_kind.md weighs keys by sigmoids", "[example]") {
  const auto layer = make_layer("tempered", small_shape());
  at::NoGradGuard no_grad;
  parameter(*layer, "log_tau").fill_(std::log(2.));
  const auto x = random({2, 7, 20});
  auto heads = [&](const char* name) {
    return at::linear(x, parameter(*layer, name)).view({2, 7, 4, -1}).transpose(1, 2);
  };
  const auto strength =
      heads("strength.weight") + parameter(*layer, "strength.bias").view({1, 4, 1, 1});
  const auto seen = at::ones({7, 7}, at::kDouble).tril();
  const auto z = at::matmul(heads("q.weight"), heads("k.weight").transpose(2, 3)) / std::sqrt(6.);
  const auto odds = (z / 2 + strength.transpose(2, 3)).exp() / seen.sum(1, true);
  const auto a = odds / (1 + odds) * seen;
  const auto joined = at::matmul(a, heads("v.weight")).transpose(1, 2).reshape({2, 7, 24});
  const auto expected = at::linear(joined, parameter(*layer, "o.weight"));

  HeadProbe probe;
  probe.statistics = true;
  auto ctx = causal();
  ctx.observer = &probe;
  REQUIRE(difference(layer->forward(x, ctx).y, expected) < 1e-12);
  const auto sums = a.sum(3).mean(at::IntArrayRef{0, 2});
  const auto reported = probe.values(small_shape().layer).at("row_sum");
  for (int h = 0; h < 4; ++h) REQUIRE(reported[h] == Approx(sums[h].item<double>()));
}

TEST_CASE("a group of heads goes when the last of its heads is gone", "[example]") {
  const auto layer = make_layer("latent", small_shape());
  REQUIRE(layer->named_buffers()["latents_map"].equal(at::tensor({0, 0, 1, 1})));
  layer->mask_heads({1, 2});
  const auto both = layer->slice();
  REQUIRE(parameter(*both, "value").sizes() == at::IntArrayRef({6, 2, 6}));
  REQUIRE(both->named_buffers()["latents_map"].equal(at::tensor({0, 1})));
  layer->mask_heads({0, 1});
  const auto second = layer->slice();
  REQUIRE(parameter(*second, "value").equal(parameter(*layer, "value").narrow(1, 1, 1)));
  REQUIRE(parameter(*second, "latent.weight").size(0) == 6);
  REQUIRE(second->named_buffers()["latents_map"].equal(at::tensor({0, 0})));
  auto odd = small_shape();
  odd.heads = odd.kv_heads = 5;
  REQUIRE_THROWS_WITH(make_layer("latent", odd),
                      Catch::Contains("2 latents do not divide 5 heads"));
}

TEST_CASE("a wrapper is asked whatever its inner layer answers", "[example]") {
  const auto shape = small_shape();
  const auto layer = make_layer("scaled", shape, ", inner: {kind: tempered, start: 3}");
  const auto inner = std::dynamic_pointer_cast<AttentionHeads>(layer->named_children()["inner"]);
  REQUIRE(inner->kind() == "tempered");
  REQUIRE(layer->statistics().size() == inner->statistics().size());
  REQUIRE(layer->matrices()->q.equal(inner->matrices()->q));
  REQUIRE(layer->output_weight().is_same(inner->output_weight()));
  REQUIRE(layer->flops(7, 7, 28) == inner->flops(7, 7, 28));
  REQUIRE_FALSE(layer->traits().rows_sum_to_one);
  at::NoGradGuard no_grad;
  const auto x = random({2, 7, 20});
  parameter(*layer, "strength").fill_(1);
  REQUIRE(difference(layer->forward(x, causal()).y, inner->forward(x, causal()).y) == 0);
}

TEST_CASE("the cost of a kind follows from what it registers", "[example]") {
  const auto layer = make_layer("temperature", small_shape(4, 2));
  // q and o of 7 queries, k and v of 5 keys, and two products for each of 35 pairs of 4 heads
  REQUIRE(layer->flops(7, 5, 35) == 2 * (7 * 2 * 24 * 20 + 5 * 2 * 12 * 20) + 2 * 35 * 4 * (6 + 6));
  REQUIRE(std::isnan(make_layer("recurrent", small_shape())->flops(7, 7, 28)));  // it does not say
}

TEST_CASE("the kind without a map sums what its state forgets", "[example]") {
  const auto layer = make_layer("recurrent", small_shape());
  at::NoGradGuard no_grad;
  const auto x = random({2, 7, 20});
  auto heads = [&](const char* name) {
    return at::linear(x, parameter(*layer, name)).view({2, 7, 4, 6}).transpose(1, 2);
  };
  const auto back = at::arange(7).unsqueeze(1) - at::arange(7);  // [T,S] places from key to query
  const auto g = parameter(*layer, "rate").sigmoid().view({4, 1, 1});
  const auto decay = g.pow(back.clamp_min(0)) * (back >= 0);  // [H,T,S]
  const auto z = at::matmul(heads("q.weight"), heads("k.weight").transpose(2, 3)) / std::sqrt(6.);
  const auto joined = at::matmul(z * decay, heads("v.weight")).transpose(1, 2).reshape({2, 7, 24});
  REQUIRE(difference(layer->forward(x, causal()).y,
                     at::linear(joined, parameter(*layer, "o.weight"))) < 1e-12);
}

TEST_CASE("a kind without a map is refused by name where it is asked for one", "[example]") {
  const auto layer = make_layer("recurrent", small_shape());
  const auto x = random({2, 7, 20});
  auto ctx = causal();
  ctx.bias = random({1, 1, 7, 7});
  REQUIRE_THROWS_WITH(layer->forward(x, ctx), Catch::Contains("has no bias on its scores"));
  ctx = causal();
  ctx.mask.allowed = at::rand({2, 1, 7, 7}) < 0.8;
  REQUIRE_THROWS_WITH(layer->forward(x, ctx), Catch::Contains("hides keys from all queries"));
  // Keys that are hidden from all queries leave no trace in the state.
  ctx.mask.allowed = at::ones({2, 1, 1, 7}, at::kBool);
  ctx.mask.allowed.select(3, 2).fill_(false);
  auto other = x.clone();
  other.select(1, 2).normal_();
  const auto before = layer->forward(x, ctx).y, after = layer->forward(other, ctx).y;
  REQUIRE(difference(before.narrow(1, 3, 4), after.narrow(1, 3, 4)) < 1e-12);
}

TEST_CASE("the map of docs/own_kind.md is found by its name", "[example]") {
  REQUIRE(map_registry().names() == std::vector<std::string>{"relu", "softmax"});
  REQUIRE_THROWS_WITH(make_layer("mapped", small_shape(), ", map: relo"),
                      Catch::Contains("did you mean 'relu'"));
  const auto layer = make_layer("mapped", small_shape(), ", map: {kind: relu, floor: 0.3}");
  at::NoGradGuard no_grad;
  const auto x = random({2, 7, 20});
  auto heads = [&](const char* name) {
    return at::linear(x, parameter(*layer, name)).view({2, 7, 4, 6}).transpose(1, 2);
  };
  parameter(*layer, "least").copy_(at::tensor({-1., 0.1, 0.5, 2.}));
  layer->after_step();
  REQUIRE(parameter(*layer, "least").equal(at::tensor({0.3, 0.3, 0.5, 2.}, at::kDouble)));
  const auto z = at::matmul(heads("q.weight"), heads("k.weight").transpose(2, 3)) / std::sqrt(6.);
  const auto places = at::arange(1, 8).view({7, 1});
  const auto a = (at::relu(z - parameter(*layer, "least").view({4, 1, 1})) / places).tril();
  const auto joined = at::matmul(a, heads("v.weight")).transpose(1, 2).reshape({2, 7, 24});
  HeadProbe probe;
  probe.statistics = true;
  auto ctx = causal();
  ctx.observer = &probe;
  REQUIRE(difference(layer->forward(x, ctx).y, at::linear(joined, parameter(*layer, "o.weight"))) <
          1e-12);
  const auto empty = (a.sum(3) == 0).to(at::kDouble).mean(at::IntArrayRef{0, 2});
  const auto reported = probe.values(small_shape().layer).at("empty_rows");
  for (int h = 0; h < 4; ++h) REQUIRE(reported[h] == Approx(empty[h].item<double>()));
}

TEST_CASE("the options of the example of docs/own_kind.md are its own", "[example]") {
  const auto without = make_layer("tempered", small_shape(), ", strength: false, start: 3");
  REQUIRE_FALSE(without->named_parameters().contains("strength.weight"));
  REQUIRE(make_layer("tempered", small_shape())->named_parameters().contains("strength.weight"));
}

}  // namespace headlab::test_example
