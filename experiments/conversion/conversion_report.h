// What the conversion of a model cost: measured, as JSON and as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/conversion/convert_model.h"
#include "experiments/inference/evaluate.h"

namespace headlab {

struct ConversionCost {
  Evaluation before, after;  // over the validation split
  ConversionErrors errors;
  int64_t most_batches = 0;  // measured on; 0: all
  bool measured = true;      // false: the run has no data, and the rest says nothing
};
// `most_batches` 0: the whole split. DataError naming `source` where there is none.
ConversionCost conversion_cost(const std::string& source, const OpenedRun& run,
                               const ConvertedModel& converted, int64_t most_batches,
                               const Compute& compute);

// `source`: the directory of the run; `to`: the kind that its heads have become.
nlohmann::ordered_json conversion_json(const std::string& source, const std::string& to,
                                       const OpenedRun& run, const ConvertedModel& converted,
                                       const ConversionCost& cost);
// With `tuned` and `loss_tuned` where the object has them.
std::string conversion_text(const nlohmann::ordered_json& report);

}  // namespace headlab
