// How large models of configs are, and the width that makes one as large as another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "experiments/comparison/comparison.h"
#include "experiments/data/source.h"

namespace headlab {

// By which the arms of a task are compared, of `split`: the loss first; then, of what is not text,
// what the task is judged by beside it. None: a training on these data ends without a loss.
std::vector<FinalMetric> final_metrics(const DataSource& data, Split split);

// Builds models to count them; data that configs share are opened once.
class ModelSizes {
 public:
  // Fills parameters, flops_per_token, steps, metrics and solved_at of an arm whose experiment is
  // read. ConfigError where there are no metrics.
  void measure(TaskArm& arm);
  // Adapts a width of the arm until its size(match) is as near to the baseline's as it can be; one
  // that is within kMatchedWithin stays as it is written. Fills excess and unmatched.
  void match(TaskArm& arm, Match match, const TaskArm& baseline);

 private:
  const DataSource& data_of(const Experiment& experiment);
  std::optional<TaskArm> with_width(const TaskArm& arm, const std::string& key, int64_t width);
  std::optional<TaskArm> nearest(const TaskArm& arm, Match match, int64_t width, double wanted);

  std::string data_settings_;
  std::shared_ptr<DataSource> data_;
};

}  // namespace headlab
