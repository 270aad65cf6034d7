// Words or classes to predict, as prediction_task() has it, with another accuracy beside the share
// of targets that are right.
#pragma once

#include "experiments/data/task.h"

namespace headlab {

// A task whose summaries are known of guesses, too: in expectation, and without logits.
class JudgesGuesses {
 public:
  virtual ~JudgesGuesses() = default;
  // Task::counts() of guesses. right: [B,T] or [B], the chance that each is right; named: bool [V],
  // the classes that some guess names.
  virtual Tensor counts_of_guesses(const Tensor& right, const Tensor& named,
                                   const Batch& batch) const = 0;
};

// `example_accuracy`: that share in each example, averaged over the examples that have targets.
const Task& prediction_by_example();

// `macro_accuracy`: of each class the share of its targets that are right, averaged over the
// classes that are a target or a prediction. Over all that is measured at once; torchmetrics,
// called batch by batch, averages over its batches.
const Task& prediction_by_class();

}  // namespace headlab
