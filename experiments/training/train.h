// Training: updates, evaluations, log rows, checkpoints, until the steps are done or something
// asks to stop.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_files.h"

namespace headlab {

struct TrainOutcome {
  RunStatus status;
  int exit_code = 0;
};

// Whether a step looks at its loss, which must be finite before anything is saved. Reading a number
// waits for a GPU, so there only steps look in which something is due: a row, an evaluation, a
// checkpoint, an end, also one that a signal asks for.
bool reads_loss(const at::Device& device, bool due);

// Trains `model` in `run` from the start, or from `resumed`. The run's files are those that
// README lists; on return the status is final, except that the caller writes it
// (RunDirectory::end).
TrainOutcome train(const Experiment& experiment, std::shared_ptr<Model> model,
                   const DataSource& data, const at::Device& device, RunDirectory& run,
                   const std::optional<Checkpoint>& resumed);

}  // namespace headlab
