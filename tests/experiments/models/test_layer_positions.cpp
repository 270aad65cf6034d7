// Positions by layer: which layers turn or bias, decoding of hybrids, refusals.
#include "experiments/files/config_file.h"
#include "experiments/models/stack_options.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_layer_positions {
using namespace testing;

namespace {

std::string stack(const std::string& more) {
  return "{layers: 3, d_model: 24, heads: 4, " + more + "}";
}

// With the weights of another model, whose names are the same.
std::shared_ptr<Model> with_weights_of(Model& other, const std::string& yaml) {
  auto model = small_decoder(yaml);
  at::NoGradGuard no_grad;
  const auto weights = other.named_parameters();
  for (auto& p : model->named_parameters()) p.value().copy_(weights[p.key()]);
  return model;
}

}  // namespace

TEST_CASE("layers without positions of their own have those of the model", "[positions]") {
  const auto ids = some_ids(2, 9);
  at::NoGradGuard no_grad;
  const auto turned = small_decoder(stack("position: rope"));
  const auto logits = logits_of(*turned, ids);
  const auto same = with_weights_of(*turned, stack("position: none, position_at: {\"0-2\": rope}"));
  REQUIRE(difference(logits_of(*same, ids), logits) == 0);
  const auto none = with_weights_of(*turned, stack("position: rope, position_at: {\"0-2\": none}"));
  const auto plain = with_weights_of(*turned, stack("position: none"));
  REQUIRE(difference(logits_of(*none, ids), logits_of(*plain, ids)) == 0);
  const auto first = with_weights_of(*turned, stack("position: rope, position_at: {\"0\": none}"));
  REQUIRE(difference(logits_of(*first, ids), logits) > 1e-6);
  REQUIRE(difference(logits_of(*first, ids), logits_of(*plain, ids)) > 1e-6);
  const auto longer = with_weights_of(
      *turned, stack("position: rope, position_at: {\"1\": {kind: rope, base: 50}}"));
  REQUIRE(difference(logits_of(*longer, ids), logits) > 1e-6);
}

TEST_CASE("biases by distance are left out of layers that have other positions", "[positions]") {
  const auto ids = some_ids(2, 9);
  at::NoGradGuard no_grad;
  const auto biased = small_decoder(stack("position: alibi"));
  const auto none =
      with_weights_of(*biased, stack("position: alibi, position_at: {\"0-2\": none}"));
  const auto plain = with_weights_of(*biased, stack("position: none"));
  REQUIRE(difference(logits_of(*none, ids), logits_of(*plain, ids)) == 0);
  REQUIRE(difference(logits_of(*biased, ids), logits_of(*plain, ids)) > 1e-6);
}

TEST_CASE("hybrids decode as they compute in parallel, and lose heads", "[positions]") {
  for (const auto& yaml : std::vector<std::string>{
           stack("position: rope, position_at: {\"0-1\": none}, attention: {kind: gated_deltanet}, "
                 "attention_at: {\"2\": {kind: gated, inner: mha, gate: sigmoid, granularity: "
                 "element}}"),
           stack("position: none, attention: {kind: kda}, attention_at: {\"2\": {kind: mla, "
                 "rope_dim: "
                 "0}}")})
    DYNAMIC_SECTION(yaml) {
      const auto model = small_decoder(yaml);
      at::NoGradGuard no_grad;
      const auto ids = some_ids(2, 12);
      const auto whole = logits_of(*model, ids);
      std::vector<LayerCache> caches;
      ModelContext ctx;
      ctx.caches = &caches;
      for (const auto& [at, chunk] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 1}, {6, 6}})
        REQUIRE(difference(model->forward({ids.narrow(1, at, chunk)}, ctx).logits,
                           whole.narrow(1, at, chunk)) < 1e-10);
      const std::vector<int64_t> gone[] = {{1, 3}, {0, 1}, {0, 1, 2}};
      for (int64_t layer = 0; layer < 3; ++layer)
        (*model->sites().at(0).layers.at(layer))->mask_heads(gone[layer]);
      const auto masked = logits_of(*model, ids);
      for (int64_t layer = 0; layer < 3; ++layer)
        model->exchange("self", layer, (*model->sites().at(0).layers.at(layer))->slice());
      REQUIRE(difference(logits_of(*model, ids), masked) < 1e-11);
    }
}

TEST_CASE("positions of layers are written as they were read", "[positions]") {
  auto options = decoder_options(
      stack("position: rope, position_at: {\"0\": none, \"1-2\": {kind: rope, base: 500}}"));
  const auto written = to_flow(write_block(*options));
  REQUIRE_THAT(written, Catch::Contains("position_at: {\"0\": {kind: none}"));
  const auto again = decoder_options(written);
  REQUIRE(to_flow(write_block(*again)) == written);
  REQUIRE(again->stacks().at(0)->position_of(2).base == 500);
}

TEST_CASE("positions that a layer cannot have are refused", "[positions]") {
  const auto refuses = [](const std::string& more, const std::string& what) {
    REQUIRE_THAT(complaint(stack(more)), Catch::Contains(what));
  };
  refuses("position: learned, position_at: {\"0\": none}", "added to the embedding");
  refuses("position: rope, position_at: {\"0\": alibi}", "must be none or rope, is alibi");
  refuses("position: rope, position_at: {\"3\": none}", "there are only layers 0 to 2");
  refuses("position: rope, position_at: {\"0-1\": none, \"1\": none}", "overlaps \"0-1\"");
  refuses("position: rope, position_at: {first: none}", "must be a layer");
  refuses("position: rope, attention: {kind: gated_deltanet}, position_at: {\"0-1\": none}",
          "rotary");
}

}  // namespace headlab::test_layer_positions
