// What a change of a model did: outputs, logits, loss and metrics of the changed against the full
// one, and whether the change of the loss is more than chance.
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
// Units and formulas of OutputChangeSums::values() and p_value.
std::vector<LogVariable> output_change_variables(const Task& task);

struct Bootstrap {
  double mean = 0;                              // of the resampled means
  int64_t resamples = 0, below = 0, above = 0;  // how many means, how many <= 0, how many >= 0

  // min(1, 2 (min(below, above) + 1) / (resamples + 1)): what was measured counts as one resample
  // more, so that no number of them says that chance is ruled out. NaN where the mean is.
  double p() const;
  // min(1, 2 min(below, above) / resamples), which may be 0: that of the case files `delta-1`.
  double p_of_shares() const;
};
// Paired bootstrap on per-example changes [N]: resample [R,N] int64 are the drawn examples.
Bootstrap bootstrap(const Tensor& changes, const Tensor& resample);
Tensor draw_resamples(int64_t resamples, int64_t examples, uint64_t seed);  // [R,N]
inline constexpr int64_t kResamples = 1000;
// Bootstrap::p() of kResamples; NaN without examples.
double p_value(const std::vector<double>& changes, uint64_t seed);
// "0.034"; at the least that so many resamples can say "<= 0.002", in two digits, rounded up.
std::string p_text(double p, int64_t resamples);

}  // namespace headlab
