// MAD's six tasks: each by hand, its chance level, and what it refuses.
#include <algorithm>
#include <set>

#include "core/errors.h"
#include "tests/catch.h"
#include "tests/rule_task_testing.h"

namespace headlab::test_mad_tasks {
using namespace testing;
using Catch::Contains;
using Ids = std::vector<int64_t>;

namespace {

const char* const kTasks[] = {"in_context_recall", "noisy_recall", "fuzzy_recall",
                              "selective_copying", "compression",  "memorization"};

int64_t always_last(const Ids&, int64_t) { return 14; }

}  // namespace

TEST_CASE("in-context recall asks for values of keys that were shown before", "[data]") {
  const std::string options = "kind: in_context_recall, symbols: 6, context: 9";  // keys 0 to 2
  const Ids ids{2, 5, 0, 3, 2, 5, 1, 3, 0};
  CHECK(labels(options + ", targets: answers", {.ids = ids}) ==
        Ids{kNo, kNo, kNo, kNo, 5, kNo, kNo, kNo, 3});
  CHECK(labels(options, {.ids = ids}) == Ids{5, 0, 3, 2, 5, 1, 3, 0, 3});
  CHECK(labels(options, {.ids = ids}, /*evaluated=*/true) ==
        labels(options + ", targets: answers", {.ids = ids}));
  CHECK_THAT(refused(options, {.ids = {2, 5, 0, 3, 2, 5, 2, 5, 1}}),
             Contains("place 8: 1 is no key that was shown before"));
  CHECK(share_right("kind: in_context_recall", always_last) == Approx(1.0 / 8).margin(0.01));
}

TEST_CASE("in-context recall refuses sizes that are none of pairs", "[data]") {
  CHECK_THAT(refused("kind: in_context_recall, context: 64"),
             Contains("data.context: must be odd and at least 3"));
  CHECK_THAT(refused("kind: in_context_recall, symbols: 8, noise_symbols: 7"),
             Contains("data.symbols: must be at least 2, a key and a value, beside 7 of noise"));
  CHECK_THAT(refused("kind: in_context_recall, noise: 0.5"),
             Contains("data.noise_symbols: must be at least 1"));
  CHECK_THAT(refused("kind: in_context_recall, noise: 1.5"), Contains("data.noise"));
  CHECK_THAT(refused("kind: in_context_recall, targets: all"), Contains("data.targets"));
}

TEST_CASE("noise is neither a key nor a value, and one pair is never noise", "[data]") {
  const std::string options =
      "kind: noisy_recall, symbols: 8, noise_symbols: 2, context: 9, targets: answers";
  CHECK(labels(options, {.ids = {2, 5, 6, 7, 2, 5, 6, 6, 2}}) ==
        Ids{kNo, kNo, kNo, kNo, 5, kNo, kNo, kNo, 5});
  const auto data = open("kind: noisy_recall, symbols: 8, noise_symbols: 2, context: 7, noise: 1");
  const Batch batch = data->train_batch(3, 0, 0, 300);
  for (int64_t n = 0; n < 300; ++n) {
    const auto ids = row(batch.ids, n);
    CHECK(std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 6; }) == 4);
    CHECK(ids[6] < 3);
  }
  CHECK(share_right("kind: noisy_recall", always_last) == Approx(1.0 / 8).margin(0.01));
}

TEST_CASE("fuzzy recall asks for each symbol of a value whose key was shown before", "[data]") {
  // Keys 0 to 3, values 4 to 7, pad 8.
  const std::string options = "kind: fuzzy_recall, symbols: 9, context: 13, key_length: 2";
  const RuleExample example{.ids = {8, 8, 1, 4, 7, 0, 1, 5, 1, 4, 7, 0, 1}, .last = 5};
  CHECK(labels(options, example, /*evaluated=*/true) ==
        Ids{kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, 4, 7, kNo, kNo, 5});
  CHECK(labels(options, example) == Ids{8, 1, 4, 7, 0, 1, 5, 1, 4, 7, 0, 1, 5});
  CHECK_THAT(refused(options, {.ids = example.ids}), Contains("in.last"));
  CHECK_THAT(refused(options, {.ids = {8, 8, 4, 4, 7, 0, 1, 5, 1, 4, 7, 0, 1}, .last = 5}),
             Contains("place 2: there is no key here"));
}

TEST_CASE("fuzzy keys are of all lengths in training and of the longest in evaluations", "[data]") {
  const auto data = open("kind: fuzzy_recall, eval_examples: 200");
  const auto lengths = [&](const Batch& batch) {
    std::set<int64_t> seen;
    for (int64_t n = 0; n < 200; ++n) {
      int64_t run = 0;
      for (const int64_t id : row(batch.ids, n)) {
        if (id >= 7 && run > 0) seen.insert(run);
        run = id < 7 ? run + 1 : 0;
      }
    }
    return seen;
  };
  CHECK(lengths(data->train_batch(3, 0, 0, 200)) == std::set<int64_t>{1, 2, 3});
  CHECK(lengths(data->eval_batch(Split::kValidation, 0, 200)) == std::set<int64_t>{3});
  CHECK(share_right("kind: fuzzy_recall", always_last) == Approx(1.0 / 8).margin(0.02));
}

TEST_CASE("fuzzy recall refuses tuples that are longer than there are symbols", "[data]") {
  CHECK_THAT(refused("kind: fuzzy_recall, symbols: 7, key_length: 4"),
             Contains("data.key_length: must be at most 3, the key symbols"));
  CHECK_THAT(refused("kind: fuzzy_recall, symbols: 5, key_length: 1, value_length: 3"),
             Contains("data.value_length: must be at most 2, the value symbols"));
  CHECK_THAT(refused("kind: fuzzy_recall, context: 12"),
             Contains("data.context: must be at least 13"));
}

TEST_CASE("selective copying asks for the content in order, where blanks stand", "[data]") {
  const std::string options = "kind: selective_copying, symbols: 6, context: 9, copied: 3";
  CHECK(labels(options, {.ids = {4, 2, 4, 0, 2, 5, 4, 4, 4}}) ==
        Ids{kNo, kNo, kNo, kNo, kNo, kNo, 2, 0, 2});
  CHECK_THAT(refused(options, {.ids = {4, 2, 4, 4, 2, 5, 4, 4, 4}}),
             Contains("place 5: only 2 symbols stand before it, not 3"));
  CHECK_THAT(refused(options, {.ids = {4, 2, 1, 1, 2, 5, 4, 4, 4}}),
             Contains("place 4: is content beyond the 3 to copy"));
  CHECK_THAT(refused(options, {.ids = {4, 2, 1, 1, 4, 4, 4, 4, 4}}),
             Contains("place 5: is not the copy symbol"));
  const auto data = open("kind: selective_copying");
  CHECK_FALSE(data->shape().targets_follow);
  CHECK(data->token_texts().at(14) == "_");
  const auto ids = data->train_batch(3, 0, 0, 200).ids;
  CHECK(ids.select(1, 54).lt(14).all().item<bool>());  // the last content touches the copy symbol
  CHECK(ids.select(1, 55).eq(15).all().item<bool>());
  CHECK(share_right("kind: selective_copying", [](const Ids&, int64_t) { return 3; }) ==
        Approx(1.0 / 14).margin(0.01));
}

TEST_CASE("selective copying refuses what has no room", "[data]") {
  CHECK_THAT(refused("kind: selective_copying, context: 16, copied: 8"),
             Contains("data.context: must be at least 17"));
  CHECK_THAT(refused("kind: selective_copying, symbols: 2"),
             Contains("data.symbols: must be at least 3"));
}

TEST_CASE("compression asks for all ids at their own places", "[data]") {
  const std::string options = "kind: compression, symbols: 5, context: 4";
  CHECK(labels(options, {.ids = {3, 0, 3, 4}}) == Ids{3, 0, 3, 4});
  CHECK_THAT(refused(options, {.ids = {3, 0, 4, 3}}),
             Contains("place 3: is not the symbol that ends"));
  CHECK(open(options)->shape().targets_are_ids);
  const auto chance = share_right("kind: compression", [](const Ids& ids, int64_t t) {
    return t + 1 == std::ssize(ids) ? 15 : 3;
  });
  CHECK(chance == Approx((1 + 31.0 / 15) / 32).margin(0.005));
  CHECK_THAT(refused("kind: compression, symbols: 2"),
             Contains("data.symbols: must be at least 3"));
  CHECK_THAT(refused("kind: compression, context: 1"),
             Contains("data.context: must be at least 2"));
}

TEST_CASE("memorization asks for values that no example shows", "[data]") {
  // Keys 0 to 2, values 3 to 6, where values go 7.
  const std::string options = "kind: memorization, symbols: 8, context: 4";
  CHECK(labels(options, {.ids = {2, 7, 0, 7}, .map = {5, 3, 6}}) == Ids{kNo, 6, kNo, 5});
  CHECK_THAT(refused(options, {.ids = {2, 7, 5, 7}}), Contains("place 2: 5 is no key"));
  const auto map_of = [&](const std::string& more, uint64_t seed) {
    const Batch batch = open("kind: memorization" + more)->train_batch(seed, 0, 0, 300);
    std::map<int64_t, int64_t> map;
    for (int64_t n = 0; n < 300; ++n) {
      const auto ids = row(batch.ids, n), targets = row(batch.targets, n);
      for (int64_t t = 0; t < 16; t += 2) {
        CHECK(ids[t] < 31);
        CHECK(ids[t + 1] == 63);
        CHECK(targets[t] == kNo);
        CHECK(map.try_emplace(ids[t], targets[t + 1]).first->second == targets[t + 1]);
      }
    }
    std::set<int64_t> values;
    for (const auto& [key, value] : map) values.insert(value);
    CHECK(values.size() == 31);
    return map;
  };
  CHECK(map_of("", 1) == map_of("", 2));
  CHECK(map_of(", map_seed: 1", 1) != map_of("", 1));
  // Whatever value is named, it is that of one key in 31.
  const auto value = map_of("", 1).at(7);
  const auto blind = [&](const Ids&, int64_t) { return value; };
  CHECK(share_right("kind: memorization", blind) == Approx(1.0 / 31).margin(0.005));
  CHECK_THAT(refused("kind: memorization, context: 15"), Contains("data.context: must be even"));
  CHECK_THAT(refused("kind: memorization, symbols: 2"),
             Contains("data.symbols: must be at least 3"));
}

TEST_CASE("every task of MAD is judged by micro and macro accuracy", "[data]") {
  for (const std::string kind : kTasks) {
    INFO(kind);
    const auto& task = open("kind: " + kind)->task();
    CHECK(task.metrics().at(1).name == "accuracy");
    REQUIRE(task.summaries().size() == 1);
    CHECK(task.summaries()[0].name == "macro_accuracy");
  }
}

TEST_CASE("finite training examples are the same in every run and each once an epoch", "[data]") {
  for (const std::string kind : {"recall", "copy", "noisy_recall", "memorization"}) {
    INFO(kind);
    const auto data = open("kind: " + kind + ", train_examples: 10");
    CHECK(data->epoch_examples() == 10);
    CHECK(data->examples(Split::kTrain) == 10);
    CHECK(data->examples(Split::kValidation) == 512);
    const auto epoch = [&](uint64_t seed, int64_t number) {
      const Batch batch = data->epoch_batch(seed, 10 * number, 10);
      std::multiset<Ids> rows;
      for (int64_t n = 0; n < 10; ++n) rows.insert(row(batch.ids, n));
      return rows;
    };
    CHECK(epoch(1, 0) == epoch(2, 3));
    const Batch judged = data->eval_batch(Split::kTrain, 0, 10);
    for (int64_t n = 0; n < 10; ++n) CHECK(epoch(1, 0).contains(row(judged.ids, n)));
    CHECK_FALSE(data->epoch_batch(1, 0, 10).ids.equal(data->epoch_batch(2, 0, 10).ids));
  }
}

}  // namespace headlab::test_mad_tasks
