// The link between layers in a model that trains, decodes, goes on at a later block and loses
// heads. Its reader (tests/first_values_head.cpp) is a kind of this program alone.
#include "experiments/measuring/ablation.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_link {
using namespace testing;

namespace {

constexpr const char* kModel =
    "{layers: 3, d_model: 24, heads: 4, kv_heads: 2, position: rope, attention: {kind: "
    "first_values, bias: true}}";

}  // namespace

TEST_CASE("layers offer where a later one reads", "[link]") {
  const auto offers = [](const std::string& yaml) {
    const auto model = small_decoder(yaml);  // which all_heads() points into
    std::vector<bool> first;
    for (auto* heads : all_heads(*model)) first.push_back((*heads)->shape().offers.first_values);
    return first;
  };
  REQUIRE(offers(kModel) == std::vector<bool>{true, false, false});
  REQUIRE(offers("{layers: 2, d_model: 24, heads: 4, attention: {kind: mha}}") ==
          std::vector<bool>{false, false});
  REQUIRE_THAT(complaint("{layers: 2, d_model: 24, heads: 4, attention: {kind: linformer}, "
                         "attention_at: {\"1\": {kind: first_values}}}"),
               Catch::Contains("'linformer' heads have no plain projections to offer"));
}

TEST_CASE("a decoder whose layers read the link trains, and decodes with its caches", "[link]") {
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

TEST_CASE("a pass that goes on at a later block reads what the first pass offered", "[link]") {
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
  for (const auto& ablated : ablate(*model, {data.get(), Split::kValidation, 4, 1}, sets,
                                    AblationMode::kZero, {at::kCPU}))
    for (const auto& [name, change] : ablated.changes) {
      INFO(name);
      REQUIRE(std::isfinite(change));
    }
}

TEST_CASE("the layer that offers goes on offering without its heads", "[link]") {
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

}  // namespace headlab::test_link
