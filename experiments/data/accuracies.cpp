#include "experiments/data/accuracies.h"

#include "core/torch.h"

namespace headlab {
namespace {

// prediction_task() with one summary more.
class Judged : public Task, public JudgesGuesses {
 public:
  explicit Judged(TaskMetric summary) : summaries_{std::move(summary)} {}
  const std::vector<TaskMetric>& metrics() const final { return prediction_task().metrics(); }
  const std::vector<DerivedMetric>& derived() const final { return prediction_task().derived(); }
  Tensor is_scored(const Batch& batch) const final { return prediction_task().is_scored(batch); }
  bool takes_scored_only() const final { return prediction_task().takes_scored_only(); }
  Tensor loss(const Tensor& logits, const Batch& batch, double smoothing) const final {
    return prediction_task().loss(logits, batch, smoothing);
  }
  Tensor per_target(const Tensor& logits, const Batch& batch) const final {
    return prediction_task().per_target(logits, batch);
  }
  Tensor sums(const Tensor& logits, const Batch& batch) const final {
    return prediction_task().sums(logits, batch);
  }
  const std::vector<TaskMetric>& summaries() const final { return summaries_; }

 private:
  std::vector<TaskMetric> summaries_;
};

// Counts: the sum of the examples' accuracies, and how many examples these are.
class ByExample : public Judged {
 public:
  ByExample()
      : Judged({"example_accuracy", "1", "accuracy of an example",
                "mean over examples of the share of an example's targets that are right",
                /*higher_is_better=*/true}) {}
  Tensor counts(const Tensor& logits, const Batch& batch) const override {
    return counts_of_guesses(per_target(logits, batch)[1], {}, batch);
  }
  Tensor counts_of_guesses(const Tensor& right, const Tensor&, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto scored = is_scored(batch);
    const auto sum = right.masked_fill(scored.logical_not(), 0)
                         .flatten(1)
                         .sum(1, /*keepdim=*/false, at::kDouble);  // [B]
    const auto asked = scored.flatten(1).sum(1);                   // [B]
    const auto share = sum / asked.clamp_min(1);
    return at::stack({share.sum(), asked.gt(0).sum().to(at::kDouble)});
  }
  std::vector<double> summarised(const Tensor& counts) const override {
    return {(counts[0] / counts[1].clamp_min(1)).item<double>()};
  }
};

// Counts [3,V]: targets, predictions and right predictions of each class.
class ByClass : public Judged {
 public:
  ByClass()
      : Judged({"macro_accuracy", "1", "accuracy over classes",
                "mean over the classes that are a target or a prediction of the share of a class's "
                "targets that are right",
                /*higher_is_better=*/true}) {}
  Tensor counts(const Tensor& logits, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto scored = is_scored(batch);
    const auto targets = batch.targets.masked_select(scored);  // [n]
    auto predicted = logits.argmax(-1);
    if (predicted.sizes() == scored.sizes()) predicted = predicted.masked_select(scored);
    const auto of_class = [&](const Tensor& classes) {
      return at::bincount(classes, {}, logits.size(-1)).to(at::kDouble);  // [V]
    };
    return at::stack({of_class(targets), of_class(predicted),
                      of_class(targets.masked_select(predicted == targets))});
  }
  Tensor counts_of_guesses(const Tensor& right, const Tensor& named,
                           const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto scored = is_scored(batch);
    const auto targets = batch.targets.masked_select(scored);  // [n]
    const auto chances = right.to(at::kDouble).masked_select(scored);
    const auto all = at::bincount(targets, {}, named.size(0)).to(at::kDouble);  // [V]
    return at::stack({all, named.to(at::kDouble), at::bincount(targets, chances, named.size(0))});
  }
  std::vector<double> summarised(const Tensor& counts) const override {
    const auto there = (counts[0] + counts[1]).gt(0);
    const auto recall = counts[2] / counts[0].clamp_min(1);
    return {(recall.sum() / there.sum().clamp_min(1)).item<double>()};
  }
};

}  // namespace

const Task& prediction_by_example() {
  static const ByExample task;
  return task;
}

const Task& prediction_by_class() {
  static const ByClass task;
  return task;
}

}  // namespace headlab
