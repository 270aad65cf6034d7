// The link between layers, with a kind that reads it (first_values_head.cpp): by itself, and in a
// decoder that trains, decodes, goes on at a later block, and loses heads.
#include "experiments/pruning/ablation.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_example_link {
using namespace testing;

namespace {

constexpr const char* kModel =
    "{layers: 3, d_model: 24, heads: 4, kv_heads: 2, position: rope, attention: {kind: "
    "first_values, bias: true}}";

Tensor parameter(const torch::nn::Module& layer, const std::string& name) {
  return layer.named_parameters()[name];
}

// What the layer says where its heads attend to `mixed` [B,T,Hkv,e], the only values there are.
Tensor plain(const AttentionHeads& layer, const Tensor& x, const Tensor& mixed) {
  const int64_t T = x.size(1);
  const auto heads = [&](const char* name) {
    return at::linear(x, parameter(layer, name)).view({2, T, -1, 6}).transpose(1, 2);
  };
  const auto repeated = [](const Tensor& kv) { return kv.repeat_interleave(2, 1); };
  const auto o =
      at::scaled_dot_product_attention(heads("q.weight"), repeated(heads("k.weight")),
                                       repeated(mixed.transpose(1, 2)), {}, 0, /*causal=*/true);
  return at::linear(o.transpose(1, 2).reshape({2, T, 24}), parameter(layer, "o.weight"));
}

}  // namespace

TEST_CASE("a reader of the link mixes what was offered, sliced as it is", "[example]") {
  const auto layer = make_layer("first_values", small_shape(4, 2));
  at::NoGradGuard no_grad;
  const auto x = random({2, 7, 20}), first = random({2, 2, 7, 6});
  LayerLink link{.first_values = first};
  auto ctx = causal();
  ctx.link = &link;
  const auto own = at::linear(x, parameter(*layer, "v.weight")).view({2, 7, 2, 6});
  const auto lambda = parameter(*layer, "lambda");
  const auto mixed = lambda[0] * first.transpose(1, 2) + lambda[1] * own;
  REQUIRE(difference(layer->forward(x, ctx).y, plain(*layer, x, mixed)) < 1e-12);
  for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {2, 3}, {0, 1, 2, 3}}) {
    layer->mask_heads(gone);
    REQUIRE(difference(layer->slice()->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
  }
}

TEST_CASE("what nobody offered is an error that names the layer", "[example]") {
  const auto layer = make_layer("first_values", small_shape());
  LayerLink link;
  auto ctx = causal();
  ctx.link = &link;
  REQUIRE_THROWS_WITH(layer->forward(random({2, 7, 20}), ctx),
                      Catch::Contains("layer 1 of 'self' reads of the link"));
}

TEST_CASE("layers offer where a later one reads", "[example]") {
  const auto offers = [](const std::string& yaml) {
    std::vector<bool> first;
    for (auto* heads : all_heads(*small_decoder(yaml)))
      first.push_back((*heads)->shape().offers.first_values);
    return first;
  };
  REQUIRE(offers(kModel) == std::vector<bool>{true, false, false});
  REQUIRE(offers("{layers: 2, d_model: 24, heads: 4, attention: {kind: temperature}}") ==
          std::vector<bool>{false, false});
  REQUIRE_THAT(complaint("{layers: 2, d_model: 24, heads: 4, attention: {kind: recurrent}, "
                         "attention_at: {\"1\": {kind: first_values}}}"),
               Catch::Contains("'recurrent' heads have no plain projections to offer"));
}

TEST_CASE("a decoder whose layers read the link trains, and decodes with its caches", "[example]") {
  const auto model = small_decoder(kModel);
  const auto ids = some_ids(2, 12);
  const auto loss = [&] {
    const auto logits = logits_of(*model, ids.narrow(1, 0, 11));
    return at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, 11).flatten());
  };
  const double before = loss().item<double>();
  for (int step = 0; step < 5; ++step) {
    model->zero_grad();
    loss().backward();
    at::NoGradGuard no_grad;
    for (auto& p : model->named_parameters()) {
      INFO(p.key());
      REQUIRE(p.value().grad().defined());
      if (p.key().find("lambda") != std::string::npos)
        REQUIRE(p.value().grad().abs().min().item<double>() > 0);
      p.value().sub_(p.value().grad(), 0.05);
    }
  }
  REQUIRE(loss().item<double>() < before);

  at::NoGradGuard no_grad;
  const auto whole = logits_of(*model, ids);
  std::vector<LayerCache> caches;
  ModelContext ctx;
  ctx.caches = &caches;
  for (const auto& [at, chunk] : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 1}, {6, 6}})
    REQUIRE(difference(model->forward({ids.narrow(1, at, chunk)}, ctx).logits,
                       whole.narrow(1, at, chunk)) < 1e-12);
}

TEST_CASE("a pass that goes on at a later block reads what the first pass offered", "[example]") {
  const auto model = small_decoder(kModel);
  const auto ids = some_ids(2, 12);
  at::NoGradGuard no_grad;
  HiddenStates known;
  ModelContext first{.hidden = &known};
  const auto whole = model->forward({ids}, first).logits;
  for (int64_t block = 0; block <= 3; ++block) {
    HiddenStates again;
    ModelContext ctx{.hidden = &again, .known = &known, .first_block = {{"", block}}};
    REQUIRE(difference(model->forward({ids}, ctx).logits, whole) == 0);
    REQUIRE(std::ssize(again.links.at("")) == 4 - block);  // as the states
  }
  const auto data = open("kind: induction, symbols: 29, context: 12, eval_examples: 10");
  const auto sets = single_heads(*model);
  for (const auto& ablated :
       ablate(*model, *data, sets, {.batch = 4, .most_batches = 1}, {at::kCPU}))
    for (const auto& [name, change] : ablated.changes) {
      INFO(name);
      REQUIRE(std::isfinite(change));
    }
}

TEST_CASE("the layer that offers goes on offering without its heads", "[example]") {
  const auto model = small_decoder(kModel);
  const auto ids = some_ids(2, 12);
  at::NoGradGuard no_grad;
  for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {0, 1, 2, 3}}) {
    auto& layer = **model->sites().at(0).layers.at(0);
    layer.mask_heads(gone);
    const auto masked = logits_of(*model, ids);
    const auto whole = model->sites().at(0).layers.at(0)->get()->shared_from_this();
    model->exchange("self", 0, layer.slice());
    REQUIRE(difference(logits_of(*model, ids), masked) < 1e-12);
    model->exchange("self", 0, std::dynamic_pointer_cast<AttentionHeads>(whole));
  }
}

}  // namespace headlab::test_example_link
