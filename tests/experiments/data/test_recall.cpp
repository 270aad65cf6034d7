// Multi-query associative recall: what stands between queries, what is asked, updates.
#include <set>

#include "core/errors.h"
#include "tests/catch.h"
#include "tests/rule_task_testing.h"

namespace headlab::test_recall {
using namespace testing;
using Catch::Contains;

namespace {

// Keys 1 to 8, values 9 to 17.
const std::string kSmall = "kind: recall, symbols: 18, context: 16, pairs: 2";

}  // namespace

TEST_CASE("a query asks for its key's value at its own place, where it is not shown", "[data]") {
  const std::vector<int64_t> blank{3, 12, 5, 9, 0, 0, 5, 0, 0, 0, 0, 0, 3, 0, 0, 0};
  const std::vector<int64_t> wanted{kNo, kNo, kNo, kNo, kNo, kNo, 9,   kNo,
                                    kNo, kNo, kNo, kNo, 12,  kNo, kNo, kNo};
  CHECK(labels(kSmall + ", fill: blank", {.ids = blank}) == wanted);
  // A filler that equals a key is not asked.
  const std::vector<int64_t> all{3, 12, 5, 9, 3, 17, 5, 9, 8, 0, 5, 12, 3, 3, 1, 2};
  CHECK(labels(kSmall + ", fill: all", {.ids = all, .queries = {12, 6}}) == wanted);
  CHECK_THAT(refused(kSmall + ", fill: all", {.ids = all}), Contains("in.queries"));
}

TEST_CASE("an updated key is worth its last value", "[data]") {
  CHECK(labels(kSmall + ", fill: blank, updates: 1",
               {.ids = {3, 12, 5, 9, 3, 17, 5, 0, 0, 0, 3, 0, 0, 0, 0, 0}}) ==
        std::vector<int64_t>{kNo, kNo, kNo, kNo, kNo, kNo, 9, kNo, kNo, kNo, 17, kNo, kNo, kNo, kNo,
                             kNo});
  for (const std::string fill : {"values", "blank", "all"}) {
    INFO(fill);
    const auto data =
        open("kind: recall, symbols: 50, context: 24, pairs: 4, updates: 4, fill: " + fill);
    const Batch batch = data->train_batch(5, 0, 0, 300);
    for (int64_t i = 0; i < 300; ++i) {
      const auto ids = row(batch.ids, i), targets = row(batch.targets, i);
      std::map<int64_t, int64_t> first, last;
      for (int64_t t = 0; t < 16; t += 2) {
        first.try_emplace(ids[t], ids[t + 1]);
        last[ids[t]] = ids[t + 1];
      }
      REQUIRE(first.size() == 4);
      for (const auto& [key, value] : last) CHECK(value != first[key]);
      for (int64_t t = 0; t < 24; ++t)
        if (targets[t] >= 0) CHECK(targets[t] == last.at(ids[t]));
    }
  }
}

TEST_CASE("blanks or any symbols stand between queries", "[data]") {
  for (const std::string fill : {"blank", "all"}) {
    INFO(fill);
    const auto data = open("kind: recall, symbols: 40, context: 32, pairs: 4, fill: " + fill);
    CHECK(data->vocabulary() == 40);
    CHECK(data->token_texts().at(0) == "_");
    CHECK(data->token_texts().at(1) == "k1");
    CHECK(data->token_texts().at(20) == "v0");
    CHECK_FALSE(data->shape().targets_follow);
    const Batch batch = data->train_batch(3, 0, 0, 1000);
    std::set<int64_t> fillers, keys;
    for (int64_t i = 0; i < 1000; ++i) {
      const auto ids = row(batch.ids, i), targets = row(batch.targets, i);
      int64_t asked = 0;
      for (int64_t t = 8; t < 32; ++t) {
        asked += targets[t] >= 0;
        (targets[t] >= 0 ? keys : fillers).insert(ids[t]);
        if (targets[t] >= 0) CHECK(t % 2 == 0);
      }
      CHECK(asked == 4);
    }
    CHECK(*keys.begin() == 1);
    CHECK(keys.size() == 19);
    CHECK(fillers.size() == (fill == "blank" ? 1 : 40));
    CHECK(*fillers.begin() == 0);
  }
}

TEST_CASE("fill: values draws what recall drew before there was anything else", "[data]") {
  const auto data = open("kind: recall, context: 16, symbols: 12");
  const Batch batch = data->eval_batch(Split::kValidation, 0, 257);
  CHECK(row(batch.ids, 0) ==
        std::vector<int64_t>{2, 7, 0, 9, 2, 7, 6, 11, 10, 7, 8, 11, 6, 8, 0, 9});
  CHECK(row(batch.ids, 256) ==
        std::vector<int64_t>{4, 9, 5, 6, 4, 9, 11, 7, 9, 9, 5, 6, 7, 11, 8, 7});
  CHECK(row(batch.targets, 0) == std::vector<int64_t>{kNo, kNo, kNo, kNo, 7, kNo, kNo, kNo, kNo,
                                                      kNo, kNo, kNo, kNo, kNo, 9, kNo});
  CHECK(data->shape().targets_follow);
}

TEST_CASE("some value of the context is right once in as many times as there are pairs", "[data]") {
  const std::string options = "kind: recall, symbols: 64, context: 32, pairs: 4, fill: blank";
  const auto first = [](const auto& ids, int64_t) { return ids[1]; };
  const auto blind = [](const auto&, int64_t) { return 40; };
  CHECK(share_right(options, first) == Approx(0.25).margin(1e-9));
  CHECK(share_right(options, blind) == Approx(2.0 / 64).margin(0.01));
}

TEST_CASE("recall refuses sizes that leave it no room", "[data]") {
  CHECK_THAT(refused(kSmall + ", updates: 3"),
             Contains("f.yaml:1:") && Contains("data.updates: must be at most pairs, 2"));
  CHECK_THAT(
      refused("kind: recall, symbols: 18, context: 16, pairs: 4, updates: 1"),
      Contains("data.context: must be at least 4 tokens a pair, and there are 4 pairs, and 2 "
               "an update, of 1"));
  CHECK_THAT(refused("kind: recall, symbols: 16, context: 16, pairs: 2, fill: blank"),
             Contains("data.symbols: must be more than context, 16"));
  CHECK_THAT(refused("kind: recall, symbols: 40, context: 17, pairs: 2, fill: all"),
             Contains("data.context: must be even"));
  CHECK_THAT(refused("kind: recall, symbols: 2, context: 16, pairs: 1, updates: 1"),
             Contains("data.symbols: must be at least 3 with updates"));
  CHECK_THAT(refused(kSmall + ", fill: zeros"), Contains("data.fill"));
  CHECK_THAT(
      refused(kSmall + ", fill: blank", {.ids = {3, 12, 5, 9, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0}}),
      Contains("place 6: 7 was paired with nothing"));
}

}  // namespace headlab::test_recall
