// A converted model as a run of its own, and training it on.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "experiments/conversion/conversion_report.h"
#include "experiments/runs/run_files.h"

namespace headlab {

// Updates after those that a run has had, further along its schedule.
struct FurtherTraining {
  int64_t updates = 0;
  bool gates_only = false;
  bool to_fewer_heads = false;        // which may cost loss: it is no reason to stop early
  int64_t most_batches = 0;           // that the tuned model is measured on; 0: all
  nlohmann::ordered_json asked = {};  // tuning_json() of the command
};

// A converted model that has been kept.
struct KeptConversion {
  nlohmann::ordered_json report;  // conversion_json, with `tuned` and `loss_tuned` where it was
  std::shared_ptr<Model> model;   // null: a signal came before anything was written
  RunStatus status{.state = RunState::kFinished};  // of training; so too where there was none
  int exit_code = 0;
};

// Of the run `out` that an earlier process has begun to train further, or has finished: goes on
// with it. None: nothing is there, or nothing that could be gone on with. RunError where something
// else lies there, or was made by a command of other options, settings or data, which it names.
std::optional<KeptConversion> go_on_converted(const std::filesystem::path& out,
                                              const OpenedRun& run, const FurtherTraining& further,
                                              const Compute& compute);

// Makes the run `out` of a converted model, whole or not at all; or trains it on where `further`
// has updates: it is there before the first. `report` (conversion_json) goes into its manifest.
KeptConversion keep_converted(const std::filesystem::path& out, const OpenedRun& run,
                              ConvertedModel& converted, const ConversionCost& cost,
                              const FurtherTraining& further, const Compute& compute,
                              nlohmann::ordered_json report);

}  // namespace headlab
