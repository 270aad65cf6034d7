// Sources with finitely many training examples: every epoch has each of them once, in an order of
// its own.
#pragma once

#include "experiments/data/source.h"

namespace headlab {

// Which of `count` examples stands at place `n` of an epoch: a permutation of 0 .. count - 1 drawn
// by (seed, epoch), of which nothing is kept.
int64_t shuffled(uint64_t seed, int64_t epoch, int64_t n, int64_t count);

class FiniteSource : public DataSource {
 public:
  int64_t epoch_examples() const final { return examples(Split::kTrain); }
  Batch epoch_batch(uint64_t seed, int64_t index, int64_t count) const final;
  Batch eval_batch(Split split, int64_t first, int64_t count) const final;

 private:
  // Those of the split with these numbers, in this order.
  virtual Batch batch_of(Split split, const std::vector<int64_t>& numbers) const = 0;
  // What is drawn anew of every example whenever it is seen, each from a random word of its own: by
  // (seed, epoch, number) in training, by (split, number) alone in an evaluation.
  virtual void draw(Batch&, const std::vector<uint64_t>&) const {}
};

}  // namespace headlab
