// Where the tokens of a decoder stand: caches, kinds of positions, windows, padding.
#include "tests/catch.h"
#include "tests/models_testing.h"

namespace headlab::test_places {
namespace {

using testing::difference;
using testing::logits_of;
using testing::small_decoder;
using testing::some_ids;

TEST_CASE("decoding with a cache equals the whole forward pass") {
  const auto ids = some_ids(2, 12);
  for (const char* position : {"learned", "sinusoidal", "rope", "alibi", "relative", "none",
                               "{kind: rope, layout: interleaved, fraction: 0.5, base: 500.0}",
                               "{kind: relative, buckets: 8, max_distance: 9}"})
    for (const char* window : {"0", "3", "[3, 0]"}) {
      INFO(position << ", window " << window);
      auto model = small_decoder(
          fmt::format("{{layers: 2, d_model: 24, heads: 6, kv_heads: 3, position: {}, window: {}}}",
                      position, window));
      const auto whole = logits_of(*model, ids);
      std::vector<LayerCache> caches;
      ModelContext ctx;
      ctx.caches = &caches;
      std::vector<Tensor> parts;
      for (int64_t at = 0; const int64_t length : {5, 1, 1, 3, 2}) {
        parts.push_back(model->forward({ids.narrow(1, at, length)}, ctx).logits);
        at += length;
      }
      CHECK(difference(at::cat(parts, 1), whole) < 1e-12);
    }
}

TEST_CASE("the position kinds differ from each other and know the order of tokens") {
  const auto ids = some_ids(1, 9);
  auto swapped = ids.clone();
  swapped.index_put_({0, 1}, ids[0][3]);
  swapped.index_put_({0, 3}, ids[0][1]);
  std::vector<Tensor> seen;
  for (const char* position : {"none", "learned", "sinusoidal", "rope", "alibi", "relative"}) {
    INFO(position);
    auto model =
        small_decoder(fmt::format("{{layers: 1, d_model: 24, heads: 4, position: {}}}", position));
    if (seen.empty()) {
      // One causal layer without positions sees a set of tokens.
      CHECK(difference(logits_of(*model, ids)[0][8], logits_of(*model, swapped)[0][8]) < 1e-12);
    } else {
      CHECK(difference(logits_of(*model, ids)[0][8], logits_of(*model, swapped)[0][8]) > 1e-4);
    }
    for (const auto& other : seen) CHECK(difference(other, logits_of(*model, ids)) > 1e-4);
    seen.push_back(logits_of(*model, ids));
  }
}

TEST_CASE("a token sees itself and what came before, as far as the windows of the layers reach") {
  const auto ids = some_ids(1, 10);
  auto changed = ids.clone();
  changed[0][4] = (ids[0][4] + 1).fmod(29);
  const auto moved = [&](const std::string& options) {
    auto model = small_decoder("{d_model: 16, heads: 4, position: rope, " + options + "}");
    const auto change = (logits_of(*model, ids) - logits_of(*model, changed)).abs().amax({0, 2});
    std::vector<int64_t> places;
    for (int64_t t = 0; t < 10; ++t)
      if (change[t].item<double>() > 1e-12) places.push_back(t);
    return places;
  };
  CHECK(moved("layers: 2") == std::vector<int64_t>{4, 5, 6, 7, 8, 9});
  CHECK(moved("layers: 2, window: 1") == std::vector<int64_t>{4});
  CHECK(moved("layers: 2, window: 3") == std::vector<int64_t>{4, 5, 6, 7, 8});
  CHECK(moved("layers: 3, window: [3, 1]") == std::vector<int64_t>{4, 5, 6, 7, 8});
  CHECK(moved("layers: 2, causal: false").size() == 10);
  CHECK(moved("layers: 1, causal: false, window: 3") == std::vector<int64_t>{2, 3, 4, 5, 6});
}

TEST_CASE("padding beyond the length of an example changes nothing before it") {
  auto model = small_decoder("{layers: 2, d_model: 16, heads: 4, causal: false}");
  const auto ids = some_ids(2, 9);
  const auto padded =
      model->forward({.ids = ids, .length = at::tensor({9, 5}, at::kLong)}, {}).logits;
  CHECK(difference(padded.narrow(0, 0, 1), logits_of(*model, ids.narrow(0, 0, 1))) < 1e-12);
  const auto alone = logits_of(*model, ids.narrow(0, 1, 1).narrow(1, 0, 5));
  CHECK(difference(padded.narrow(0, 1, 1).narrow(1, 0, 5), alone) < 1e-12);
}

TEST_CASE("more tokens than learned positions are refused, other positions go on") {
  auto learned = small_decoder("{layers: 1, d_model: 16, heads: 4}");
  CHECK_THROWS_WITH(logits_of(*learned, some_ids(1, 13)),
                    Catch::Contains("place 12 is beyond the 12 learned positions"));
  auto rope = small_decoder("{layers: 1, d_model: 16, heads: 4, position: rope}");
  CHECK(logits_of(*rope, some_ids(1, 13)).size(1) == 13);
}

}  // namespace
}  // namespace headlab::test_places
