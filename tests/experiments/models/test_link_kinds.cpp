// Kinds whose layers read what earlier ones say (value_residual, shared_kv, dcmha by a link), in
// decoders that train, decode, go on at a later block and lose heads.
#include "tests/catch.h"
#include "tests/models_testing.h"

namespace headlab::test_link_kinds {
using namespace testing;

namespace {

// Attention of three layers with two kv heads.
const std::vector<std::string> kAttention = {
    "attention: {kind: value_residual, mix: fixed, lambda: [0.3, 0.9]}",
    "attention: {kind: value_residual, mix: learned}",
    "attention: {kind: value_residual, mix: tied}",
    "attention: {kind: value_residual, mix: sigmoid, inner: {kind: entmax, bias: true}}",
    "attention: {kind: value_residual, mix: replace}",
    "attention: {kind: xsa, inner: {kind: value_residual, mix: learned}}",
    "attention: {kind: value_residual, inner: {kind: dcmha, post: false}}",
    "attention: {kind: shared_kv}",
    "attention: {kind: shared_kv, inner: {kind: mha, qk_norm: true, bias: true}}",
    "attention: mha, attention_at: {\"1\": {kind: shared_kv}}",
    "attention: mha, attention_at: {\"2\": {kind: gated, gate: sigmoid, inner: shared_kv}}",
    "attention: {kind: dcmha, pre: false, key_wise: false, gate: false, generator_input: link}"};

std::string model_with(const std::string& attention) {
  const bool grouped = attention.find("dcmha") == std::string::npos;
  return "{layers: 3, d_model: 24, heads: 4, position: rope, kv_heads: " +
         std::string(grouped ? "2" : "4") + ", " + attention + "}";
}

template <class Law>
void for_each_model(const Law& law) {
  for (const auto& attention : kAttention) DYNAMIC_SECTION(attention) {
      law(*small_decoder(model_with(attention)), attention);
    }
}

}  // namespace

TEST_CASE("every parameter of a layer that reads the link gets a gradient", "[link]") {
  for_each_model([](Model& model, const std::string&) {
    const auto ids = some_ids(2, 12);
    at::cross_entropy_loss(logits_of(model, ids.narrow(1, 0, 11)).flatten(0, 1),
                           ids.narrow(1, 1, 11).flatten())
        .backward();
    for (const auto& p : model.named_parameters()) {
      INFO(p.key());
      REQUIRE(p.value().grad().defined());
      REQUIRE(p.value().grad().isfinite().all().item<bool>());
    }
  });
}

TEST_CASE("decoding reads the link as one pass over the text does", "[link]") {
  for_each_model([](Model& model, const std::string& attention) {
    at::NoGradGuard no_grad;
    const auto ids = some_ids(2, 12);
    const auto whole = logits_of(model, ids);
    std::vector<LayerCache> caches;
    ModelContext ctx;
    ctx.caches = &caches;
    for (const auto& [at, chunk] : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 1}, {6, 6}})
      REQUIRE(difference(model.forward({ids.narrow(1, at, chunk)}, ctx).logits,
                         whole.narrow(1, at, chunk)) < 1e-11);
    if (attention == "attention: {kind: shared_kv}")
      for (size_t layer = 1; layer < 3; ++layer) REQUIRE(caches[layer].entries("k") == 0);
  });
}

TEST_CASE("a pass that goes on at a later block reads what was offered before", "[link]") {
  for_each_model([](Model& model, const std::string&) {
    at::NoGradGuard no_grad;
    const auto ids = some_ids(2, 12);
    HiddenStates known;
    ModelContext first{.hidden = &known};
    const auto whole = model.forward({ids}, first).logits;
    for (int64_t block = 0; block <= 3; ++block) {
      ModelContext ctx{.known = &known, .first_block = {{"", block}}};
      REQUIRE(difference(model.forward({ids}, ctx).logits, whole) == 0);
    }
  });
}

TEST_CASE("layers that offer or read lose heads as all others do", "[link]") {
  for_each_model([](Model& model, const std::string&) {
    at::NoGradGuard no_grad;
    const auto ids = some_ids(2, 12);
    const std::vector<int64_t> gone[] = {{1, 3}, {0, 1}, {0, 1, 2}};
    for (int64_t layer = 0; layer < 3; ++layer)
      (*model.sites().at(0).layers.at(layer))->mask_heads(gone[layer]);
    const auto masked = logits_of(model, ids);
    for (int64_t layer = 0; layer < 3; ++layer)
      model.exchange("self", layer, (*model.sites().at(0).layers.at(layer))->slice());
    REQUIRE(difference(logits_of(model, ids), masked) < 1e-11);
  });
}

TEST_CASE("a layer of shared keys with the offerer's queries and output is the offerer", "[link]") {
  auto shape = small_shape(4, 2);
  shape.offers.keys_values = true;
  const auto offerer = make_layer("mha", shape, ", qk_norm: true, bias: true");
  shape = small_shape(4, 2);
  shape.offered.keys_values = true;
  const auto reader =
      make_layer("shared_kv", shape, ", inner: {kind: mha, qk_norm: true, bias: true}");
  at::NoGradGuard no_grad;
  const auto own = offerer->named_parameters();
  for (auto& p : reader->named_parameters()) {
    REQUIRE(p.key().find(".k") == std::string::npos);
    p.value().copy_(own[p.key().substr(std::string("inner.").size())]);
  }
  LayerLink link;
  auto ctx = causal();
  ctx.link = &link;
  const auto x = random({2, 7, 20});
  const auto y = offerer->forward(x, ctx).y;
  REQUIRE(difference(reader->forward(x, ctx).y, y) < 1e-14);
}

TEST_CASE("values that replace are those of a fixed mix of 1 and 0", "[link]") {
  auto shape = small_shape(4, 2);
  shape.offered.first_values = true;
  const auto replaced = make_layer("value_residual", shape, ", mix: replace");
  const auto fixed = make_layer("value_residual", shape, ", lambda: [1, 0]");
  at::NoGradGuard no_grad;
  for (const auto& p : replaced->named_parameters()) {
    REQUIRE(p.key().find(".v.") == std::string::npos);
    fixed->named_parameters()[p.key()].copy_(p.value());
  }
  LayerLink link{.first_values = random({2, 2, 7, 6})};
  auto ctx = causal();
  ctx.link = &link;
  const auto x = random({2, 7, 20});
  REQUIRE(difference(replaced->forward(x, ctx).y, fixed->forward(x, ctx).y) < 1e-13);
}

}  // namespace headlab::test_link_kinds
