// Repeated random tokens, also on a circuit whose heads are known.
#include <cmath>
#include <set>

#include "core/errors.h"
#include "experiments/analysis/repeated_tokens.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/hand_built.h"
#include "tests/models_testing.h"

namespace headlab::test_repeated_tokens {
namespace {

using testing::difference;
using testing::hand_built_decoder;
using testing::row;

double at_place(const Tensor& t, const std::vector<int64_t>& place) {
  Tensor value = t;
  for (int64_t i : place) value = value[i];
  return value.item<double>();
}

TEST_CASE("random tokens are repeated twice, distinct, by seed", "[repeated_tokens]") {
  const auto tokens = repeated_tokens(64, 128, {}, {});
  CHECK(tokens.ids.sizes() == at::IntArrayRef({10, 100}));
  CHECK(tokens.period == 50);
  CHECK(tokens.distinct);
  std::set<std::vector<int64_t>> different;
  for (int64_t b = 0; b < 10; ++b) {
    const auto ids = row(tokens.ids, b);
    CHECK(std::equal(ids.begin(), ids.begin() + 50, ids.begin() + 50));
    CHECK(std::set<int64_t>(ids.begin(), ids.end()).size() == 50);
    CHECK(*std::max_element(ids.begin(), ids.end()) < 64);
    different.insert(ids);
  }
  CHECK(different.size() == 10);
  CHECK(at::equal(tokens.ids, repeated_tokens(64, 128, {}, {}).ids));
  CHECK_FALSE(at::equal(tokens.ids, repeated_tokens(64, 128, {}, {.seed = 1}).ids));
}

TEST_CASE("a short context shortens the period, a small vocabulary repeats tokens",
          "[repeated_tokens]") {
  const auto shorter = repeated_tokens(64, 65, {}, {});
  CHECK(shorter.period == 32);
  CHECK(shorter.ids.size(1) == 64);
  CHECK(shorter.distinct);
  const auto few = repeated_tokens(7, 128, {}, {});
  CHECK_FALSE(few.distinct);
  CHECK(few.period == 50);
  CHECK(few.ids.max().item<int64_t>() == 6);
  CHECK_THROWS_AS(repeated_tokens(7, 3, {}, {}), DataError);
  CHECK_THROWS_AS(repeated_tokens(2, 8, {kCls, kSep}, {}), DataError);
}

TEST_CASE("special tokens are not drawn", "[repeated_tokens]") {
  std::vector<uint8_t> classes(60, kWord);
  classes[0] = kCls, classes[30] = kSep, classes[31] = kPunctuation;
  const auto ids = repeated_tokens(60, 128, classes, {.period = 58}).ids;
  CHECK_FALSE(ids.eq(0).any().item<bool>());
  CHECK_FALSE(ids.eq(30).any().item<bool>());
  CHECK(ids.eq(31).any().item<bool>());
}

TEST_CASE("the induction head scores 1 on repeated tokens, its neighbours do not",
          "[repeated_tokens]") {
  const auto model = hand_built_decoder({});
  const RepeatedTokensOptions options;
  const auto tokens = repeated_tokens(64, model->context(), {}, options);
  const auto scores = repeated_token_scores(*model, heads_at(*model, "self"), tokens);
  const auto& induction = scores.at("induction_repeated");
  CHECK(at_place(induction, {1, 0}) > 0.999999);
  CHECK(induction.gt(0.4).sum().item<int64_t>() == 1);
  // A uniform causal head: mean of 1 / (i + 1) over the second half.
  double uniform = 0;
  for (int i = 50; i < 100; ++i) uniform += 1. / (i + 1) / 50;
  CHECK(at_place(induction, {1, 1}) == Approx(uniform));
  CHECK(at_place(scores.at("duplicate_token_repeated"), {1, 1}) == Approx(uniform));
  CHECK(scores.at("duplicate_token_repeated").lt(0.1).all().item<bool>());

  const auto arrays = repeated_token_arrays(scores, tokens, options);
  REQUIRE(arrays.size() == 2);
  CHECK(arrays[0].about.name == "induction_repeated");
  CHECK(arrays[0].values[4] == at_place(induction, {1, 0}));
  CHECK(arrays[0].count_attributes.at("period") == 50);
}

TEST_CASE("the score of repeated tokens is the mean over the second half of the map",
          "[repeated_tokens]") {
  const auto model = testing::small_decoder("{layers: 2, d_model: 16, heads: 2}", 29, 30);
  const auto tokens = repeated_tokens(29, 30, {}, {});
  REQUIRE(tokens.period == 15);
  HeadProbe probe;
  probe.maps = true;
  ModelContext ctx;
  ctx.observer = &probe;
  model->forward({tokens.ids}, ctx);
  const auto scores = repeated_token_scores(*model, heads_at(*model, "self"), tokens);
  for (int64_t l : {0, 1}) {
    const auto map = probe.layer_maps().at(l).to(at::kDouble);  // [B,H,30,30]
    const auto mean = [&](int64_t offset) {
      return map.diagonal(offset, -2, -1).mean(-1).mean(0);  // [H]
    };
    const auto after = map.narrow(2, 15, 15).diagonal(1, -2, -1).mean(-1).mean(0);
    CHECK(difference(scores.at("induction_repeated")[l], after) < 1e-6);
    CHECK(difference(scores.at("duplicate_token_repeated")[l], mean(-15)) < 1e-6);
  }
}

TEST_CASE("heads that are gone and kinds without a map have no score", "[repeated_tokens]") {
  const auto model = hand_built_decoder({.vocabulary = 20, .context = 24});
  (*model->sites()[0].layers[0])->mask_heads({2});
  const auto tokens = repeated_tokens(20, 24, {}, {});
  const auto scores =
      repeated_token_scores(*model, heads_at(*model, "self"), tokens).at("induction_repeated");
  CHECK(std::isnan(at_place(scores, {0, 2})));
  CHECK(scores.isnan().sum().item<int64_t>() == 1);
  const auto compressed = testing::small_decoder(
      "{layers: 1, d_model: 16, heads: 2, causal: false, attention: {kind: linformer}}", 20, 24);
  const auto none = repeated_token_scores(*compressed, heads_at(*compressed, "self"), tokens)
                        .at("induction_repeated");
  CHECK(none.isnan().all().item<bool>());
}

}  // namespace
}  // namespace headlab::test_repeated_tokens
