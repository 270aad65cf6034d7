// What a change of a model did: outputs, logits, loss and metrics of the changed against the full
// one.
//
// N examples, T positions, D width, V vocabulary.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/data/task.h"
#include "experiments/logs/run_log.h"

namespace headlab {

// One pass of a model over a batch.
struct Pass {
  Tensor y;       // [N,T,D] hidden state behind the last block
  Tensor logits;  // [N,T,V], or [N,V] where an example has one target
};

class OutputChangeSums {
 public:
  explicit OutputChangeSums(const Task& task);  // which outlives this

  // Two passes over `batch`. Norms, cosine and KL are over the positions that it says are there
  // (Batch::length), the task's metrics over scored ones among them.
  void add(const Pass& full, const Pass& changed, const Batch& batch);

  // By name: l2 (Frobenius norm of the difference of y), l2_per_position, relative (l2 over the
  // norm of the full y), cosine, kl (full || changed, nat; NaN of a task that predicts nothing),
  // and change_name() of each metric.
  std::map<std::string, double> values() const;
  // [N]: mean over an example's scored positions of the change of its loss; examples without any
  // are left out.
  const std::vector<double>& example_loss_changes() const { return examples_; }

 private:
  void add_metrics(const Pass& full, const Pass& changed, const Batch& batch, const Tensor& valid);

  const Task& task_;
  double square_ = 0, full_square_ = 0, norms_ = 0, cosine_ = 0, kl_ = 0;
  double positions_ = 0, predictions_ = 0, scored_ = 0;
  std::vector<double> metrics_, examples_;
};

// "loss_delta"
std::string change_name(const TaskMetric& metric);
// Units and formulas of OutputChangeSums::values().
std::vector<LogVariable> output_change_variables(const Task& task);

}  // namespace headlab
