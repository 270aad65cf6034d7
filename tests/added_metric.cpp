// A task that is judged by one metric more than others and by another measure of its loss. All that
// the program says of either stands in here (tests/test_added_metric.py).
#include <cmath>

#include "core/torch.h"
#include "experiments/data/tasks/synthetic.h"

namespace headlab {
namespace {

class Trusted : public Task {
 public:
  const std::vector<TaskMetric>& metrics() const override {
    static const auto all = [] {
      auto metrics = prediction_task().metrics();
      metrics.push_back({.name = "trust",
                         .units = "1",
                         .long_name = "trust in what is right",
                         .formula = "mean of p over the scored targets",
                         .higher_is_better = true,
                         .decimals = 2});
      return metrics;
    }();
    return all;
  }
  const std::vector<DerivedMetric>& derived() const override {
    static const std::vector<DerivedMetric> all{
        {{.name = "bits", .units = "bit", .long_name = "loss in bits", .formula = "loss / ln 2"},
         [](double loss) { return loss / std::log(2.0); }}};
    return all;
  }
  Tensor is_scored(const Batch& batch) const override { return prediction_task().is_scored(batch); }
  Tensor loss(const Tensor& logits, const Batch& batch, double smoothing) const override {
    return prediction_task().loss(logits, batch, smoothing);
  }
  Tensor per_target(const Tensor& logits, const Batch& batch) const override {
    const auto values = prediction_task().per_target(logits, batch);  // [2,B,T]
    const auto p = (-values[0]).exp().masked_fill(is_scored(batch).logical_not(), 0);
    return at::cat({values, p.unsqueeze(0)});  // [3,B,T]
  }
};

// Symbols in pairs: every second one is the one before it again, and is to be predicted.
class Pairs : public NextTokenTask {
 public:
  struct Options : SyntheticOptions {};
  explicit Pairs(const Options& options) : NextTokenTask(options) {}
  const Task& task() const override {
    static const Trusted task;
    return task;
  }

 private:
  void draw(Draws& draws, Sequence& sequence) const override {
    for (size_t t = 0; t < sequence.tokens.size(); ++t) {
      sequence.scored[t] = t % 2 == 1;
      sequence.tokens[t] = t % 2 == 1 ? sequence.tokens[t - 1] : draws.between(0, symbols() - 1);
    }
  }
};

const RegisterData<Pairs> pairs("pairs", "symbols in pairs, for tests");

}  // namespace
}  // namespace headlab
