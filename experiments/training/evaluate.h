// Loss and metrics of a model on fixed examples of a split.
#pragma once

#include "experiments/data/source.h"
#include "experiments/models/model.h"

namespace headlab {

struct Evaluation {
  double loss = 0;      // nats a scored token
  double accuracy = 0;  // share of scored tokens whose likeliest prediction is right
  int64_t tokens = 0;   // scored
  int64_t examples = 0;
};

// Batches of the fixed examples of a split, in order. `most_batches` 0: the whole split.
void for_each_batch(const DataSource& data, Split split, int64_t batch, int64_t most_batches,
                    const std::function<void(const Batch& batch)>& visit);

// In eval mode, without gradients; the model's mode is restored. `most_batches` 0: the whole split.
Evaluation evaluate(Model& model, const DataSource& data, Split split, int64_t batch,
                    int64_t most_batches, const at::Device& device);

}  // namespace headlab
