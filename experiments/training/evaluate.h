// Loss and metrics of a model on fixed examples of a split.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/models/model.h"

namespace headlab {

struct Evaluation {
  struct Mean : TaskMetric {
    double value = 0;  // 0 where no target is scored
  };
  Split split = Split::kValidation;
  std::vector<Mean> means = {};  // of Task::metrics() in their order: the first is the loss
  int64_t tokens = 0;            // scored targets
  int64_t examples = 0;

  double loss() const { return means.at(0).value; }
  double mean(const std::string& name) const;     // std::out_of_range for another task's
  std::optional<double> validation_loss() const;  // none: of another split
};

// "loss 1.2345 nat"
std::string to_text(const Evaluation::Mean& mean);
// Of a column of a metric's numbers under its name, at least `least`.
int column_width(const TaskMetric& metric, int least);
// All of them, the loss first, with ", " between.
std::string means_text(const Evaluation& evaluation);

// Batches of the fixed examples of a split, in order, on `device`. `most_batches` 0: the whole
// split.
void for_each_batch(const DataSource& data, Split split, int64_t batch, int64_t most_batches,
                    const at::Device& device, const std::function<void(const Batch& batch)>& visit);

// In eval mode, without gradients; the model's mode is restored. `most_batches` 0: the whole split.
Evaluation evaluate(Model& model, const DataSource& data, Split split, int64_t batch,
                    int64_t most_batches, const Compute& compute);

}  // namespace headlab
