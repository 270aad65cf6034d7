#include "experiments/data/task.h"

#include <fmt/format.h>

#include <cmath>

#include "core/attention/precision.h"
#include "core/attention/random.h"
#include "core/torch.h"

namespace headlab {
namespace {

// What logits [...,V] are about: all targets, or, where they are rows [n,V] of those that are
// scored, these.
Tensor targets_of(const Tensor& logits, const Tensor& targets) {
  return logits.dim() == targets.dim() + 1 ? targets : targets.masked_select(targets.ge(0));
}

class Classification : public Task {
 public:
  const std::vector<TaskMetric>& metrics() const override {
    static const std::vector<TaskMetric> all{
        {kLoss, "nat", "loss", "mean of -ln p over the scored targets"},
        {"accuracy", "1", "accuracy", "share of scored targets that are the likeliest prediction",
         /*higher_is_better=*/true}};
    return all;
  }
  Tensor is_scored(const Batch& batch) const override { return batch.targets.ge(0); }
  bool takes_scored_only() const override { return true; }
  Tensor loss(const Tensor& logits, const Batch& batch, double smoothing) const override {
    return cross_entropy_sum(logits, targets_of(logits, batch.targets), smoothing);
  }
  Tensor per_target(const Tensor& logits, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto type = at_least_float(logits);
    const auto targets = targets_of(logits, batch.targets);
    const auto ln_p = at::log_softmax(logits, -1, type)
                          .gather(-1, targets.clamp_min(0).unsqueeze(-1))
                          .squeeze(-1);  // [B,T], or [n]
    const auto right = logits.argmax(-1) == targets;
    const auto values = at::stack({-ln_p, right.to(type)});
    const auto scored = is_scored(batch);
    if (targets.sizes() == batch.targets.sizes())
      return values.masked_fill(scored.logical_not(), 0);
    auto all = at::zeros({2, scored.numel()}, values.options());
    all.index_copy_(1, scored.flatten().nonzero().squeeze(1), values);
    return all.view({2, scored.size(0), scored.size(1)});
  }
  // Summed as the loss of a training is, in the type of the logits.
  Tensor sums(const Tensor& logits, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto targets = targets_of(logits, batch.targets);
    const auto right = (logits.argmax(-1) == targets) & (targets >= 0);  // [B,T], or [n]
    return at::stack(
        {cross_entropy_sum(logits, targets).to(at::kDouble), right.sum().to(at::kDouble)});
  }
};

class Prediction : public Classification {
 public:
  const std::vector<DerivedMetric>& derived() const override {
    static const std::vector<DerivedMetric> all{{{.name = "perplexity",
                                                  .units = "1",
                                                  .long_name = "perplexity",
                                                  .formula = "exp(loss)",
                                                  .decimals = 3},
                                                 [](double loss) { return std::exp(loss); }}};
    return all;
  }
};

// Counts: the sum of the examples' accuracies, and how many examples these are.
class ByExample : public Prediction {
 public:
  const std::vector<TaskMetric>& summaries() const override {
    static const std::vector<TaskMetric> all{
        {"example_accuracy", "1", "accuracy of an example",
         "mean over examples of the share of an example's targets that are right",
         /*higher_is_better=*/true}};
    return all;
  }
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
class ByClass : public Prediction {
 public:
  const std::vector<TaskMetric>& summaries() const override {
    static const std::vector<TaskMetric> all{{"macro_accuracy", "1", "accuracy over classes",
                                              "mean over the classes that are a target or a "
                                              "prediction of the share of a class's targets "
                                              "that are right",
                                              /*higher_is_better=*/true}};
    return all;
  }
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
  std::vector<double> summarised(const Tensor& flat) const override {
    const auto counts = flat.view({3, -1});
    const auto there = (counts[0] + counts[1]).gt(0);
    const auto recall = counts[2] / counts[0].clamp_min(1);
    return {(recall.sum() / there.sum().clamp_min(1)).item<double>()};
  }
};

class Embedding : public Task {
 public:
  const std::vector<TaskMetric>& metrics() const override {
    static const std::vector<TaskMetric> all{{"distance", "1", "distance of embeddings",
                                              "mean of 1 - cos(e, e of the model as it was)"}};
    return all;
  }
  Tensor is_scored(const Batch& batch) const override {
    return at::ones({batch.examples()}, batch.ids.options().dtype(at::kBool));
  }
  bool predicts() const override { return false; }
  bool least_at_whole() const override { return true; }
  Tensor loss(const Tensor& e, const Batch& batch, double) const override {
    return distances(e, batch).sum();
  }
  Tensor importance(const Tensor& e, const Batch&) const override {
    constexpr uint64_t kSeed = 1990;
    const auto r =
        at::randn(e.sizes(), CounterRng{.seed = kSeed}.generator(CounterRng::kRows, at::kCPU),
                  e.options().device(at::kCPU).requires_grad(false));
    return (r.to(e.device()) * e).sum();
  }
  Tensor per_target(const Tensor& e, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    return distances(e, batch).unsqueeze(0);
  }

 private:
  static Tensor distances(const Tensor& e, const Batch& batch) {
    return (1 - at::cosine_similarity(e.to(at::kFloat), batch.reference, -1)).clamp_min(0);
  }
};

// Counts [4,k] of each number: examples, sum of the targets, of their squares, of the squared
// errors.
class Regression : public Task {
 public:
  const std::vector<TaskMetric>& metrics() const override {
    static const std::vector<TaskMetric> all{
        {kLoss, "1", "loss", "mean of (prediction - target)^2 over examples and their numbers"}};
    return all;
  }
  const std::vector<DerivedMetric>& derived() const override {
    static const std::vector<DerivedMetric> all{
        {{.name = "mse", .units = "1", .long_name = "mean squared error", .formula = "loss"},
         [](double loss) { return loss; }}};
    return all;
  }
  const std::vector<TaskMetric>& summaries() const override {
    static const std::vector<TaskMetric> all{
        {"r2", "1", "coefficient of determination",
         "mean over the numbers of an example of 1 - sum (prediction - target)^2 / "
         "sum (target - mean target)^2, over those that vary",
         /*higher_is_better=*/true}};
    return all;
  }
  Tensor is_scored(const Batch& batch) const override {
    return at::ones({batch.examples()}, batch.targets.options().dtype(at::kBool));
  }
  bool predicts() const override { return false; }
  Tensor loss(const Tensor& predicted, const Batch& batch, double) const override {
    return squares(predicted, batch).mean(-1).sum();
  }
  Tensor per_target(const Tensor& predicted, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    return squares(predicted, batch).mean(-1).unsqueeze(0);  // [1,B]
  }
  Tensor counts(const Tensor& predicted, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto y = batch.targets.to(at::kDouble);  // [B,k]
    return at::stack({at::ones_like(y), y, y.square(), squares(predicted, batch).to(at::kDouble)})
        .sum(1);  // [4,k]
  }
  std::vector<double> summarised(const Tensor& flat) const override {
    const auto counts = flat.view({4, -1});
    const auto n = counts[0].clamp_min(1);
    const auto spread = counts[2] - counts[1].square() / n;  // sum (y - mean y)^2
    const auto varies = spread > 1e-12 * counts[2];
    if (!varies.any().item<bool>()) return {0};
    return {(1 - counts[3] / spread).masked_select(varies).mean().item<double>()};
  }

 private:
  static Tensor squares(const Tensor& predicted, const Batch& batch) {
    return (predicted.to(at_least_float(predicted)) - batch.targets).square();  // [B,k]
  }
};

}  // namespace

const Task& regression_task() {
  static const Regression task;
  return task;
}

const Task& embedding_task() {
  static const Embedding task;
  return task;
}

Tensor Task::scored(const Batch& batch) const { return is_scored(batch).sum(); }

Tensor Task::sums(const Tensor& logits, const Batch& batch) const {
  return per_target(logits, batch).flatten(1).sum(1, /*keepdim=*/false, at::kDouble);  // [metrics]
}

const std::vector<DerivedMetric>& Task::derived() const {
  static const std::vector<DerivedMetric> none;
  return none;
}

const std::vector<TaskMetric>& Task::summaries() const {
  static const std::vector<TaskMetric> none;
  return none;
}

Tensor Task::counts(const Tensor&, const Batch&) const { return {}; }
Tensor Task::counts_of_guesses(const Tensor&, const Tensor&, const Batch&) const { return {}; }
std::vector<double> Task::summarised(const Tensor&) const { return {}; }

std::vector<TaskMetric> Task::own_metrics() const {
  if (!summaries().empty() || metrics().empty()) return summaries();
  return {metrics().begin() + 1, metrics().end()};
}

const Task& prediction_task() {
  static const Prediction task;
  return task;
}

const Task& prediction_by_example() {
  static const ByExample task;
  return task;
}

const Task& prediction_by_class() {
  static const ByClass task;
  return task;
}

const Task& classification_task() {
  static const Classification task;
  return task;
}

std::string to_text(const MetricValue& metric) {
  return fmt::format("{} {:.{}f}{}", metric.name, metric.value, metric.decimals,
                     metric.units == "1" ? "" : " " + metric.units);
}

Tensor cross_entropy_sum(const Tensor& logits, const Tensor& targets, double smoothing) {
  const auto type = logits.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const auto rows = (half ? logits.to(at::kFloat) : logits).flatten(0, -2);  // [B*T,V]
  const auto wanted = targets.flatten();                                     // [B*T]
  // torch ignores one value only, here every negative one is.
  return at::cross_entropy_loss(rows, wanted.masked_fill(wanted < 0, kIgnored), {},
                                at::Reduction::Sum, kIgnored, smoothing);
}

}  // namespace headlab
