// The laws of the synthetic tasks.
#include <set>

#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_synthetic {
using namespace testing;

TEST_CASE("induction repeats with a period and scores what followed the last occurrence",
          "[data]") {
  const int64_t T = 40;
  const auto data = open("kind: induction, context: 40, symbols: 1000");
  CHECK(data->vocabulary() == 1000);
  std::set<int64_t> periods;
  const Batch batch = data->train_batch(3, 0, 0, 500);
  for (int64_t i = 0; i < 500; ++i) {
    const auto ids = row(batch.ids, i), targets = row(batch.targets, i);
    int64_t period = 0;
    while (period < T && targets[period] < 0) ++period;
    REQUIRE(period >= T / 8);
    REQUIRE(period <= T / 2);
    for (int64_t t = 0; t < T; ++t) {
      CHECK(ids[t] == ids[t % period]);
      CHECK(targets[t] == (t < period ? kIgnored : ids[t - period + 1]));
    }
    CHECK(std::set<int64_t>(ids.begin(), ids.begin() + period).size() > 1);
    periods.insert(period);
  }
  CHECK(std::ssize(periods) == T / 2 - T / 8 + 1);
}

TEST_CASE("copy scores the second string", "[data]") {
  const auto data = open("kind: copy, context: 10, symbols: 7");
  CHECK(data->vocabulary() == 8);
  const Batch batch = data->train_batch(3, 0, 0, 500);
  CHECK(batch.ids.select(1, 5).eq(7).all().item<bool>());
  CHECK(batch.ids.slice(1, 0, 5).lt(7).all().item<bool>());
  CHECK(batch.ids.slice(1, 6).equal(batch.ids.slice(1, 0, 4)));
  CHECK(batch.targets.slice(1, 0, 5).eq(kIgnored).all().item<bool>());
  CHECK(batch.targets.slice(1, 5).equal(batch.ids.slice(1, 0, 5)));
  const auto counts = at::bincount(batch.ids.slice(1, 0, 5).flatten());  // of 2500 draws
  CHECK(counts.size(0) == 7);
  CHECK(counts.min().item<int64_t>() > 257);  // 357 expected, standard deviation 17.5
  CHECK(counts.max().item<int64_t>() < 457);
}

TEST_CASE("first_token scores the last position, which must say the first token", "[data]") {
  const auto data = open("kind: first_token, context: 6, symbols: 5");
  CHECK(data->vocabulary() == 5);
  const Batch batch = data->train_batch(3, 0, 0, 500);
  CHECK(batch.targets.slice(1, 0, 5).eq(kIgnored).all().item<bool>());
  CHECK(batch.targets.select(1, 5).equal(batch.ids.select(1, 0)));
  CHECK(std::get<0>(at::_unique(batch.ids)).equal(at::arange(5)));
  CHECK_FALSE(batch.ids.select(1, 5).equal(batch.ids.select(1, 0)));
}

TEST_CASE("recall scores the value of every key, once, at gaps that follow the power law",
          "[data]") {
  const auto data = open("kind: recall, context: 32, symbols: 20, pairs: 4");
  CHECK(data->token_texts().at(9) == "k9");
  CHECK(data->token_texts().at(10) == "v0");
  const Batch batch = data->train_batch(3, 0, 0, 1000);
  std::map<int64_t, int64_t> queries;  // at each position
  for (int64_t i = 0; i < 1000; ++i) {
    const auto ids = row(batch.ids, i), targets = row(batch.targets, i);
    std::map<int64_t, int64_t> value_of;
    for (int64_t t = 0; t < 8; t += 2) value_of[ids[t]] = ids[t + 1];
    CHECK(value_of.size() == 4);
    std::set<int64_t> asked;
    for (int64_t t = 0; t < 32; ++t) {
      const bool key = ids[t] < 10;
      CHECK(key == (t < 8 ? t % 2 == 0 : targets[t] >= 0));
      if (targets[t] < 0) continue;
      CHECK(targets[t] == value_of.at(ids[t]));
      CHECK((t == 31 || ids[t + 1] == targets[t]));
      asked.insert(ids[t]);
      ++queries[t];
    }
    CHECK(asked.size() == 4);
  }
  CHECK(queries.size() == 12);          // the even positions from 8 to 30
  CHECK(queries[8] > 4 * queries[30]);  // weights 1 and 1/12
  const auto even = open("kind: recall, context: 32, symbols: 20, pairs: 4, power: 1");
  const auto targets = even->train_batch(3, 0, 0, 1000).targets;
  const auto first = targets.select(1, 8).ge(0).sum().item<int64_t>();
  CHECK(std::abs(first - 333) < 75);  // 4 of 12 slots; standard deviation 15
}

TEST_CASE("no example of a synthetic evaluation is trained on, whatever the seed", "[data]") {
  for (const std::string kind :
       {"induction", "copy", "recall", "first_token", "in_context_recall", "noisy_recall",
        "fuzzy_recall", "selective_copying", "compression", "memorization"}) {
    INFO(kind);
    const auto data = open("kind: " + kind + ", eval_examples: 64");
    std::set<std::vector<int64_t>> seen;
    for (Split split : {Split::kTrain, Split::kValidation, Split::kTest}) {
      CHECK(data->examples(split) == 64);
      const Batch batch = data->eval_batch(split, 0, 64);
      for (int64_t i = 0; i < 64; ++i) seen.insert(row(batch.ids, i));
    }
    CHECK(seen.size() == 3 * 64);
    for (uint64_t seed : {0, 1, 2, 1337}) {  // the first three number the splits
      const Batch batch = data->train_batch(seed, 0, 0, 64);
      for (int64_t i = 0; i < 64; ++i) CHECK(seen.count(row(batch.ids, i)) == 0);
    }
  }
}

}  // namespace headlab::test_synthetic
