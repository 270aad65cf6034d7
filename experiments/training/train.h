// Training: updates, until the steps are done or something asks to stop, and what they leave
// behind.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_files.h"

namespace headlab {

class Recorder;
struct TrainingState;

struct TrainOutcome {
  RunStatus status;
  int exit_code = 0;
  int signal = 0;  // that has come, also with the last update
};
// What a status says of it: of one that ended the training, and of one that came while the whole
// validation split or the test part was measured behind the last update, which the next process
// then begins with.
std::string signal_text(int signal);
inline constexpr const char* kMeasurementCutShort =
    "a signal came while the end of the training was measured";

// Whether a step looks at its loss, which must be finite before anything is saved. Reading a number
// waits for a GPU, so there only steps look in which something is due: a row, an evaluation, a
// checkpoint, an end, also one that a signal asks for.
bool reads_loss(const at::Device& device, bool due);

// Threads, the watch over busy cores and determinism that the settings ask for, of the whole
// process from now on.
void use_settings(const TrainOptions& options);

// Makes them those of `updates` more from `step` on, further along the same schedule.
void go_on(TrainOptions& options, int64_t step, int64_t updates, const DataSource& data);

// Trains `model` in `run` from the start, or from `resumed`. The run's files are those that
// docs/first_run.md lists; on return the status is final, except that the caller writes it
// (RunDirectory::end). Where several ranks train (Compute::comm), rank 0 calls it and the others
// train_along(): all have the same weights and the same outcome. LostRank where one of them is
// gone.
TrainOutcome train(const Experiment& experiment, std::shared_ptr<Model> model,
                   const DataSource& data, const Compute& compute, RunDirectory& run,
                   const std::optional<Checkpoint>& resumed);
TrainOutcome train_along(const Experiment& experiment, std::shared_ptr<Model> model,
                         const DataSource& data, const Compute& compute,
                         const std::optional<Checkpoint>& resumed);

using SaveTraining = std::function<void(const TrainingState& state, const NamedTensors& optimizer)>;

// The updates from `state`, which moves on with them, to the last. `moments`: the optimiser's,
// none: it begins. Without a recorder the model is trained to the same weights; it is evaluated
// only where train.early_stop asks for it, and saved by `save` where a checkpoint is due and where
// the training ends. The model is left in training mode, the recorder open. Where it cannot be
// resumed, what a signal leaves of the last measurement is what there is.
TrainOutcome train_further(const Experiment& experiment, std::shared_ptr<Model> model,
                           const DataSource& data, const Compute& compute, TrainingState& state,
                           const std::optional<NamedTensors>& moments, Recorder* recorder,
                           bool resumable = false, const SaveTraining& save = nullptr);

}  // namespace headlab
