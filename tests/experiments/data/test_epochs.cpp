// Epochs over finitely many examples: every one once, in an order that nothing has to be kept of.
#include <algorithm>
#include <set>

#include "core/torch.h"
#include "experiments/data/epochs.h"
#include "experiments/runs/experiment.h"
#include "experiments/training/update.h"
#include "tests/catch.h"

namespace headlab::test_epochs {
namespace {

std::vector<int64_t> order(uint64_t seed, int64_t epoch, int64_t count) {
  std::vector<int64_t> all;
  for (int64_t n = 0; n < count; ++n) all.push_back(shuffled(seed, epoch, n, count));
  return all;
}

// Example n is the token n.
class Numbers : public FiniteSource {
 public:
  int64_t vocabulary() const override { return 10; }
  int64_t context() const override { return 1; }
  int64_t examples(Split split) const override { return split == Split::kTrain ? 10 : 0; }

 private:
  Batch batch_of(Split, const std::vector<int64_t>& numbers) const override {
    return {at::tensor(numbers, at::kLong).unsqueeze(1)};
  }
};

// Batches of one, two, .. five examples, which have their number in common.
class Sizes : public Numbers {
 public:
  int64_t sized_batches(int64_t positions) const override { return positions; }
  Batch sized_batch(uint64_t seed, int64_t index, int64_t positions) const override {
    const int64_t number = shuffled(seed, index / positions, index % positions, positions) + 1;
    return {.ids = at::full({number, 1}, number, at::kLong)};
  }
};

// The examples of updates 0 .. updates - 1, one after the other.
std::vector<int64_t> trained_on(const TrainOptions& options, int64_t updates) {
  std::vector<int64_t> numbers;
  for (int64_t step = 0; step < updates; ++step)
    for (const auto& batch : micro_batches(options, Numbers(), 3, step).batches)
      for (int64_t n = 0; n < batch.examples(); ++n)
        numbers.push_back(batch.ids[n][0].item<int64_t>());
  return numbers;
}

}  // namespace

TEST_CASE("an epoch is a permutation, of any number of examples", "[data]") {
  for (int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000})
    for (int64_t epoch : {0, 1}) {
      auto all = order(1337, epoch, count);
      std::sort(all.begin(), all.end());
      for (int64_t n = 0; n < count; ++n) REQUIRE(all[n] == n);
    }
  CHECK_THROWS_AS(shuffled(1, 0, 10, 10), c10::Error);
  CHECK_THROWS_AS(shuffled(1, 0, -1, 10), c10::Error);
}

TEST_CASE("epochs and seeds have orders of their own, without a pattern", "[data]") {
  const auto first = order(1337, 0, 1000);
  CHECK(first == order(1337, 0, 1000));
  int64_t same = 0, neighbours = 0;
  for (const auto& other : {order(1337, 1, 1000), order(1338, 0, 1000)})
    for (size_t n = 0; n < first.size(); ++n) same += first[n] == other[n];
  for (size_t n = 1; n < first.size(); ++n) neighbours += std::abs(first[n] - first[n - 1]) == 1;
  CHECK(same < 12);        // 2 expected
  CHECK(neighbours < 12);  // 2 expected
  // Every example is as likely at the first place: 64 of 6400 expected, standard deviation 8.
  std::vector<int64_t> at_first(100);
  for (int64_t epoch = 0; epoch < 6400; ++epoch) ++at_first[shuffled(1, epoch, 0, 100)];
  CHECK(*std::min_element(at_first.begin(), at_first.end()) > 24);
  CHECK(*std::max_element(at_first.begin(), at_first.end()) < 104);
}

TEST_CASE("updates go over the epochs, across their ends and however they are split", "[data]") {
  TrainOptions options;
  options.batch = 4;
  const auto whole = trained_on(options, 5);  // two epochs of ten
  for (int64_t epoch : {0, 1})
    CHECK(std::set<int64_t>(whole.begin() + 10 * epoch, whole.begin() + 10 * (epoch + 1)).size() ==
          10);
  options.accumulate = 2;
  CHECK(trained_on(options, 5) == whole);
  CHECK_THROWS_AS(Numbers().train_batch(1, 0, 0, 4), c10::Error);
}

TEST_CASE("an update of so many positions takes a batch by size, cut by its examples", "[data]") {
  TrainOptions options;
  options.max_positions = 5, options.accumulate = 3, options.epochs = 2;
  CHECK(options.total_steps(Sizes()) == 10);
  options.steps = 7;
  CHECK(options.total_steps(Sizes()) == 7);
  std::multiset<int64_t> numbers;
  for (int64_t step = 0; step < 5; ++step) {
    const auto parts = micro_batches(options, Sizes(), 3, step).batches;
    int64_t examples = 0;
    for (const auto& part : parts) {
      CHECK(part.examples() > 0);
      examples += part.examples();
    }
    const auto number = parts[0].ids[0][0].item<int64_t>();
    CHECK(examples == number);
    CHECK(std::ssize(parts) == std::min<int64_t>(3, number));
    numbers.insert(number);
  }
  CHECK(numbers == std::multiset<int64_t>{1, 2, 3, 4, 5});
  CHECK_THROWS_WITH(options.total_steps(Numbers()),
                    Catch::Contains("train.max_positions") && Catch::Contains("give train.batch"));
}

TEST_CASE("examples for evaluation come in their order", "[data]") {
  class Validated : public Numbers {
    int64_t examples(Split) const override { return 10; }
  };
  const auto batch = Validated().eval_batch(Split::kValidation, 4, 3);
  CHECK(batch.ids.flatten().equal(at::tensor({4, 5, 6}, at::kLong)));
  CHECK_THROWS_AS(Validated().eval_batch(Split::kValidation, 8, 3), c10::Error);
}

}  // namespace headlab::test_epochs
