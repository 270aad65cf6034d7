// What is asked of a model: cross entropy and what is scored.
#include "experiments/data/task.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_task {
namespace {

TEST_CASE("cross entropy counts the targets that are scored, smoothed over the vocabulary") {
  torch::manual_seed(3);
  const auto logits = at::randn({2, 3, 7}, at::kDouble);
  const auto targets = at::tensor({4, -1, 0, -100, 6, -5}, at::kLong).view({2, 3});
  const auto logp = at::log_softmax(logits, 2);
  double nll = 0, uniform = 0;
  for (int64_t place : {0, 2, 4}) {
    const auto row = logp.view({6, 7})[place];
    nll -= row[targets.view(6)[place].item<int64_t>()].item<double>();
    uniform -= row.mean().item<double>();
  }
  CHECK(cross_entropy_sum(logits, targets).item<double>() == Approx(nll).epsilon(1e-12));
  CHECK(cross_entropy_sum(logits, targets, 0.1).item<double>() ==
        Approx(0.9 * nll + 0.1 * uniform).epsilon(1e-12));
  const auto none = at::full({2, 3}, -100, at::kLong);
  CHECK(cross_entropy_sum(logits, none).item<double>() == 0);
  const auto half = cross_entropy_sum(logits.to(at::kBFloat16), targets);
  CHECK(half.scalar_type() == at::kFloat);
  CHECK(half.item<double>() == Approx(nll).epsilon(0.02));
}

TEST_CASE("logits of the scored targets alone say what all of them say") {
  torch::manual_seed(4);
  const auto logits = at::randn({2, 3, 7}, at::kDouble);
  const Batch batch{.targets = at::tensor({4, -1, 0, -100, 6, -5}, at::kLong).view({2, 3})};
  const auto rows = logits.flatten(0, 1).index_select(0, at::tensor({0, 2, 4}, at::kLong));
  const Task& task = prediction_task();
  CHECK(task.takes_scored_only());
  for (double smoothing : {0.0, 0.1})
    CHECK(task.loss(rows, batch, smoothing).item<double>() ==
          Approx(task.loss(logits, batch, smoothing).item<double>()).epsilon(1e-12));
  CHECK(at::equal(task.per_target(rows, batch), task.per_target(logits, batch)));
  CHECK(at::allclose(task.sums(rows, batch), task.sums(logits, batch), 1e-12, 0));
  const Batch none{.targets = at::full({2, 3}, kIgnored, at::kLong)};
  const auto nothing = at::empty({0, 7}, at::kDouble).requires_grad_();
  const auto loss = task.loss(nothing, none);
  loss.backward();
  CHECK(loss.item<double>() == 0);
  CHECK(task.sums(nothing, none).abs().sum().item<double>() == 0);
  CHECK(at::equal(task.per_target(nothing, none), at::zeros({2, 2, 3}, at::kDouble)));
}

}  // namespace
}  // namespace headlab::test_task
