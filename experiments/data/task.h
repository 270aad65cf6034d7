// What is asked of a model: the loss it is trained on and the numbers it is judged by, as sums over
// scored targets, which add over batches, micro-batches and processes.
#pragma once

#include <string>
#include <vector>

#include "experiments/data/batch.h"

namespace headlab {

// The name of what language models and classifiers are trained on.
inline constexpr const char* kLoss = "loss";

// A number that a model is judged by. Logs, tables, comparisons and reports take all that they say
// of it from here: to add one is to name it in its task.
struct TaskMetric {
  std::string name, units, long_name, formula;
  bool higher_is_better = false;
  int decimals = 4;  // that people are shown
};

// One that follows from the loss. Logs have the loss alone, metrics.jsonl and people both.
struct DerivedMetric : TaskMetric {
  double (*of_loss)(double loss) = nullptr;
};

struct MetricValue : TaskMetric {
  double value = 0;
};
// "loss 1.2345 nat"
std::string to_text(const MetricValue& metric);

// logits [B,T,V], targets [B,T]; or [B,V] and [B] where an example has one target. A task that
// takes it is also given logits [n,V] to targets [B,T]: of the n that are scored, in order.
class Task {
 public:
  virtual ~Task() = default;
  // Means over scored targets; the first is the loss.
  virtual const std::vector<TaskMetric>& metrics() const = 0;
  virtual const std::vector<DerivedMetric>& derived() const;  // here none
  virtual Tensor is_scored(const Batch& batch) const = 0;     // of each target: bool [B,T] or [B]
  virtual bool takes_scored_only() const { return false; }
  // Logits are those of a distribution over words or classes.
  virtual bool predicts() const { return true; }
  Tensor scored(const Batch& batch) const;  // how many they are: int64 scalar
  // The model as it was has the least loss that there is: any change of it is a rise.
  virtual bool least_at_whole() const { return false; }
  // The loss summed over them: a differentiable scalar. `smoothing` e: (1-e) loss + e mean over all
  // V of -ln p.
  virtual Tensor loss(const Tensor& logits, const Batch& batch, double smoothing = 0) const = 0;
  // What the gradient of is the importance of a head, summed likewise. Here the loss.
  virtual Tensor importance(const Tensor& logits, const Batch& batch) const {
    return loss(logits, batch);
  }
  // Of each metric what every target has in it: [metrics,B,T] or [metrics,B], float32 or wider, 0
  // where it is not scored, without gradient.
  virtual Tensor per_target(const Tensor& logits, const Batch& batch) const = 0;
  // The sums of that: float64 [metrics].
  virtual Tensor sums(const Tensor& logits, const Batch& batch) const;

  // Numbers of an evaluation that are no means over its targets. Here none.
  virtual const std::vector<TaskMetric>& summaries() const;
  // What they are made of: float64 counts, which add over batches; undefined where there are none.
  virtual Tensor counts(const Tensor& logits, const Batch& batch) const;
  // The same of guesses, in expectation and without logits. right: [B,T] or [B], the chance that
  // each is right; named: bool [V], the classes that some guess names.
  virtual Tensor counts_of_guesses(const Tensor& right, const Tensor& named,
                                   const Batch& batch) const;
  // In their order; of counts in their shape, or flat.
  virtual std::vector<double> summarised(const Tensor& counts) const;

  // What it is judged by beside its loss: the summaries, and without them the means. None: the loss
  // is all there is.
  std::vector<TaskMetric> own_metrics() const;
};

// Every target is a word of a vocabulary: cross entropy, its perplexity, and the share of targets
// that are the likeliest prediction.
const Task& prediction_task();
// The same of classes, which have no perplexity.
const Task& classification_task();

// As prediction_task(), with another accuracy beside the share of targets that are right.
// `example_accuracy`: that share in each example, averaged over the examples that have targets.
const Task& prediction_by_example();
// `macro_accuracy`: of each class the share of its targets that are right, averaged over the
// classes that are a target or a prediction. Over all that is measured at once; torchmetrics,
// called batch by batch, averages over its batches.
const Task& prediction_by_class();

// A model embeds texts: how far an embedding [B,D] lies from that of the model as it was,
// Batch::reference, 1 - cos(e, e_0). At the model as it was this has its least value, and no
// gradient: with e of length 1 it is |e - e_0|^2 / 2, whose growth along a gate xi is
// |de/dxi|^2 / 2. So importance is the gradient of <r, e>, r drawn once from N(0, I): its square is
// |de/dxi|^2 in the mean (Hutchinson 1990).
const Task& embedding_task();
// Numbers [B,k] of an example: the mean of (prediction - target)^2 over examples and numbers.
const Task& regression_task();

// Cross entropy in float32 or wider, summed over the targets >= 0 (a mean is the sum over their
// count, of a whole update or split). logits [B,T,V], targets [B,T] -> scalar.
Tensor cross_entropy_sum(const Tensor& logits, const Tensor& targets, double smoothing = 0);

}  // namespace headlab
