// Sources whose examples are sequences of context + 1 tokens, each token predicting the next.
#pragma once

#include "experiments/data/source.h"

namespace headlab {

class SequenceSource : public DataSource {
 public:
  int64_t context() const final { return context_; }
  DataShape shape() const override {
    auto shape = DataSource::shape();
    shape.targets_follow = targets_follow();
    return shape;
  }
  Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const final;
  Batch eval_batch(Split split, int64_t first, int64_t count) const final;

 protected:
  using WriteExample = std::function<void(int64_t i, int64_t* ids, int64_t* targets)>;

  explicit SequenceSource(int64_t context) : context_(context) {}
  Batch made_of(int64_t count, const WriteExample& write) const;
  virtual bool targets_follow() const { return true; }
  // Of `all` tokens the first `windows` are in windows; one more is a target alone.
  static SplitTokens windowed_tokens(int64_t all, int64_t windows) {
    return {windows + 1 >= all ? all : windows, all};
  }

 private:
  // One example: ids [T] and targets [T] are to be written.
  virtual void train_example(uint64_t bits, int64_t* ids, int64_t* targets) const = 0;
  virtual void eval_example(Split split, int64_t n, int64_t* ids, int64_t* targets) const = 0;

  int64_t context_;
};

}  // namespace headlab
