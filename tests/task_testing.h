// A task beside prediction, with metrics of its own, and data that ask it.
#pragma once

#include "core/torch.h"
#include "experiments/data/source.h"

namespace headlab::testing {

// Whether a model says token 0, and how surely: no loss is called so here, and nothing is accurate.
class SaysZero : public Task {
 public:
  const std::vector<TaskMetric>& metrics() const override {
    static const std::vector<TaskMetric> all{{"surprise", "nat", "surprise", "mean of -ln p(0)"},
                                             {"says_zero", "1", "zeros", "share of zeros"},
                                             {"square", "1", "square", "mean of logits[0]^2"}};
    return all;
  }
  const std::vector<DerivedMetric>& derived() const override { return prediction_task().derived(); }
  Tensor is_scored(const Batch& batch) const override { return batch.targets.ge(0); }
  Tensor loss(const Tensor& logits, const Batch& batch, double) const override {
    return -at::log_softmax(logits, -1).select(-1, 0).masked_fill(batch.targets.lt(0), 0).sum();
  }
  Tensor per_target(const Tensor& logits, const Batch& batch) const override {
    const auto said = at::log_softmax(logits, -1, at::kDouble).select(-1, 0);
    const auto zero = logits.argmax(-1).eq(0).to(at::kDouble);
    const auto square = logits.select(-1, 0).to(at::kDouble).square();
    return at::stack({-said, zero, square}).masked_fill(batch.targets.lt(0), 0);
  }
};

// Another source with that task.
class WithTask : public DataSource {
 public:
  WithTask(const DataSource& data, const Task& task) : data_(data), task_(task) {}
  int64_t vocabulary() const override { return data_.vocabulary(); }
  int64_t context() const override { return data_.context(); }
  const Task& task() const override { return task_; }
  Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const override {
    return data_.train_batch(seed, step, first, count);
  }
  int64_t examples(Split split) const override { return data_.examples(split); }
  Batch eval_batch(Split split, int64_t first, int64_t count) const override {
    return data_.eval_batch(split, first, count);
  }

 private:
  const DataSource& data_;
  const Task& task_;
};

}  // namespace headlab::testing
