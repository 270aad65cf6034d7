// A converted model as a run of its own, and training it on.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/conversion/conversion_report.h"

namespace headlab {

// Updates after those that a run has had, further along its schedule.
struct FurtherTraining {
  int64_t updates = 0;
  bool gates_only = false;
  bool to_fewer_heads = false;  // which may cost loss: it is no reason to stop early
};

// Makes the run `out` of a converted model and trains it on where `further` has updates; the exit
// code of that. `report` (conversion_json) goes into its manifest, and then has `tuned` and
// `loss_tuned`, measured as `cost` was.
int keep_converted(const std::filesystem::path& out, const OpenedRun& run,
                   ConvertedModel& converted, const ConversionCost& cost,
                   const FurtherTraining& further, const Compute& compute,
                   nlohmann::ordered_json& report);

}  // namespace headlab
