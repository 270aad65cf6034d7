// The protocols of heads: on a circuit whose heads are known, and retrieval by hand.
#include <cmath>
#include <set>

#include "core/errors.h"
#include "experiments/protocols.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/hand_built.h"
#include "tests/models_testing.h"

namespace headlab {
namespace {

using testing::difference;
using testing::hand_built_decoder;
using testing::row;

double at_place(const Tensor& t, const std::vector<int64_t>& place) {
  Tensor value = t;
  for (int64_t i : place) value = value[i];
  return value.item<double>();
}

TEST_CASE("random tokens are repeated twice, distinct, by seed", "[protocols]") {
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

TEST_CASE("a short context shortens the period, a small vocabulary repeats tokens", "[protocols]") {
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

TEST_CASE("special tokens are not drawn", "[protocols]") {
  std::vector<uint8_t> classes(60, kWord);
  classes[0] = kCls, classes[30] = kSep, classes[31] = kPunctuation;
  const auto ids = repeated_tokens(60, 128, classes, {.period = 58}).ids;
  CHECK_FALSE(ids.eq(0).any().item<bool>());
  CHECK_FALSE(ids.eq(30).any().item<bool>());
  CHECK(ids.eq(31).any().item<bool>());
}

TEST_CASE("the induction head scores 1 on repeated tokens, its neighbours do not", "[protocols]") {
  const auto model = hand_built_decoder({});
  const RepeatedTokensOptions options;
  const auto tokens = repeated_tokens(64, model->context(), {}, options);
  const auto scores = repeated_token_scores(*model, tokens);
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
  CHECK(arrays[0].attributes.at("period") == 50);
}

TEST_CASE("the score of repeated tokens is the mean over the second half of the map",
          "[protocols]") {
  const auto model = testing::small_decoder("{layers: 2, d_model: 16, heads: 2}", 29, 30);
  const auto tokens = repeated_tokens(29, 30, {}, {});
  REQUIRE(tokens.period == 15);
  HeadProbe probe;
  probe.maps = true;
  ModelContext ctx;
  ctx.probe = &probe;
  model->forward(tokens.ids, ctx);
  const auto scores = repeated_token_scores(*model, tokens);
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

TEST_CASE("heads that are gone and kinds without a map have no score", "[protocols]") {
  const auto model = hand_built_decoder({.vocabulary = 20, .context = 24});
  (*model->sites().at("self")[0])->mask_heads({2});
  const auto tokens = repeated_tokens(20, 24, {}, {});
  const auto scores = repeated_token_scores(*model, tokens).at("induction_repeated");
  CHECK(std::isnan(at_place(scores, {0, 2})));
  CHECK(scores.isnan().sum().item<int64_t>() == 1);
  const auto compressed = testing::small_decoder(
      "{layers: 1, d_model: 16, heads: 2, causal: false, attention: {kind: linformer}}", 20, 24);
  const auto none = repeated_token_scores(*compressed, tokens).at("induction_repeated");
  CHECK(none.isnan().all().item<bool>());
}

TEST_CASE("sinks are texts whose mean weight on the first token is above the threshold",
          "[protocols]") {
  const auto data = testing::open("kind: induction, symbols: 20, context: 24, eval_examples: 30");
  const auto model = hand_built_decoder({.vocabulary = 20, .context = 24});
  const auto rates = sink_rates(*model, *data, Split::kValidation, {.length = 8});
  CHECK(rates.texts == 30);
  CHECK(rates.length == 8);
  // Uniform over up to 8 keys: the mean of 1/1 .. 1/8 is 0.34.
  CHECK(at_place(rates.scores.at("sink_rate"), {0, 1}) == 1);
  CHECK(at_place(rates.scores.at("sink_rate"), {0, 0}) == 0);  // 2 of 8 rows
  CHECK(rates.model == Approx(rates.scores.at("sink_rate").mean().item<double>()));
  const SinkOptions strict{.texts = 7, .length = 64, .threshold = 0.5};
  const auto none = sink_rates(*model, *data, Split::kValidation, strict);
  CHECK(none.texts == 7);
  CHECK(none.length == 24);
  CHECK(at_place(none.scores.at("sink_rate"), {0, 1}) == 0);
  const auto arrays = sink_arrays(none, strict);
  CHECK(arrays[0].about.name == "sink_rate");
  CHECK(arrays[0].attributes.at("model") == none.model);
  CHECK(arrays[0].attributes.at("texts") == 7);
}

// The needle is 5 6 5 at places 2..4; 5 stands before it too.
Retrieval retrieval(const std::vector<int64_t>& generated, const std::vector<int64_t>& heaviest) {
  return {.prompt = {5, 1, 5, 6, 5, 2},
          .begin = 2,
          .end = 5,
          .generated = generated,
          .heaviest = at::tensor(heaviest, at::kLong).view({-1, 1, 1}),
          .wanted = {"a", "b"},
          .said = {"a", "b"}};
}

double score_of(const Retrieval& run) { return retrieval_score(run).item<double>(); }

TEST_CASE("a head retrieves what it looks at in the needle while it is generated", "[protocols]") {
  CHECK(score_of(retrieval({5, 6, 5}, {2, 3, 4})) == 1);
  CHECK(score_of(retrieval({5, 6, 9}, {2, 3, 4})) == Approx(2. / 3));
  CHECK(score_of(retrieval({5, 6, 5}, {0, 3, 1})) == Approx(1. / 3));  // 0: a copy outside
  CHECK(score_of(retrieval({6, 5}, {2, 3})) == 0);                     // looks at another token
  CHECK(score_of(retrieval({6}, {7})) == 0);                           // a generated key
}

TEST_CASE("a token that is copied again counts once", "[protocols]") {
  CHECK(score_of(retrieval({5, 5, 5, 5}, {2, 2, 2, 4})) == Approx(2. / 3));
}

TEST_CASE("ROUGE-1 recall counts each word as often as both have it", "[protocols]") {
  CHECK(rouge1_recall({"a", "b", "a", "c"}, {"a", "c", "c", "x"}) == 50);
  CHECK(rouge1_recall({"a", "b"}, {"b", "a", "y"}) == 100);
  CHECK(rouge1_recall({"a"}, {}) == 0);
  CHECK(rouge1_recall({}, {"a"}) == 0);
}

TEST_CASE("retrieval scores are means over the runs that found the needle", "[protocols]") {
  auto found = retrieval({5, 6, 5}, {2, 3, 4}), half = retrieval({5}, {2});
  auto missed = retrieval({5, 6, 5}, {2, 3, 4});
  missed.said = {"a", "x"};  // exactly 50 is not above 50
  CHECK(mean_retrieval_score({found, half, missed}).item<double>() == Approx((1 + 1. / 3) / 2));
  CHECK(std::isnan(mean_retrieval_score({missed}).item<double>()));
}

TEST_CASE("a needle outside its prompt is refused", "[protocols]") {
  auto run = retrieval({5}, {2});
  run.end = 7;
  CHECK_THROWS(retrieval_score(run));
  run.end = run.begin;
  CHECK_THROWS(retrieval_score(run));
  auto steps = retrieval({5, 6}, {2});
  CHECK_THROWS(retrieval_score(steps));
}

}  // namespace
}  // namespace headlab
