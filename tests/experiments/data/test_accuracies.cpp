// Accuracies beside the share of targets that are right.
#include "experiments/data/task.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_accuracies {
namespace {

Tensor two_examples(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong).view({2, 3});
}

// Logits [B,T,4] of these predictions.
Tensor logits_of(const Tensor& predictions) {
  return at::one_hot(predictions, 4).to(at::kFloat) * 3;
}

const std::vector<int64_t> kTargets{0, 0, kIgnored, 0, 1, kIgnored};

Batch batch() { return {.targets = two_examples(kTargets)}; }

}  // namespace

TEST_CASE("the accuracy of examples counts each example alike", "[data]") {
  const Task& task = prediction_by_example();
  const auto logits = logits_of(two_examples({0, 0, 3, 0, 2, 3}));
  const Batch two{.targets = two_examples({0, 0, 3, 1, kIgnored, kIgnored})};
  const auto counts = task.counts(logits, two);
  CHECK(task.summarised(counts) == std::vector<double>{0.5});
  CHECK(task.summarised(counts + counts) == std::vector<double>{0.5});
  CHECK(task.sums(logits, two)[1].item<double>() == 3);  // of 4: micro accuracy is another
  const Batch none{.targets = at::full({2, 3}, kIgnored, at::kLong)};
  CHECK(task.summarised(task.counts(logits, none)) == std::vector<double>{0});
}

TEST_CASE("macro accuracy is the mean recall of classes that are a target or a prediction",
          "[data]") {
  const Task& task = prediction_by_class();
  // Class 0: two of three; 1: none of one; 2: predicted only; 3: predicted where nothing is asked.
  const auto predictions = two_examples({0, 0, 3, 1, 2, 3});
  const auto logits = logits_of(predictions);
  const double wanted = (2.0 / 3 + 0 + 0) / 3;
  CHECK(task.summarised(task.counts(logits, batch()))[0] == Approx(wanted));
  const auto rows =
      logits.flatten(0, 1).index_select(0, at::tensor(std::vector<int64_t>{0, 1, 3, 4}));
  CHECK(at::equal(task.counts(rows, batch()), task.counts(logits, batch())));
  CHECK(task.sums(logits, batch())[1].item<double>() == 2);
  // Batches are added up, not averaged.
  const auto other = logits_of(two_examples({1, 1, 1, 1, 1, 1}));
  const auto sum = task.counts(logits, batch()) + task.counts(other, batch());
  CHECK(task.summarised(sum)[0] == Approx((2.0 / 6 + 1.0 / 2 + 0) / 3));
}

}  // namespace headlab::test_accuracies
