// What a training leaves behind: rows of metrics.jsonl and log.h5, maps, checkpoints, status and
// progress. It stands beside the loop, which trains the same without it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/system/progress.h"
#include "experiments/training/training_log.h"
#include "experiments/training/training_metrics.h"
#include "experiments/training/training_state.h"
#include "experiments/training/update.h"

namespace headlab {

// After an update; in the end maps, an evaluation and a checkpoint are due whatever this says.
struct Due {
  bool row = false, statistics = false, maps = false, evaluation = false, checkpoint = false;
};
// By the settings and the step (of the first update: 1) alone, so that every process knows.
Due due_after(const Experiment& experiment, int64_t step);

// In this order: first_rows() where the log begins; before_update() and after_update() of each
// update, then evaluated(), end_step() and save() as need be; close(). RunError where the storage
// refuses.
class Recorder {
 public:
  // Of a training that stands at `start`: of a new one, or of one that is resumed, whose files go
  // on from there. What is referred to outlives it.
  Recorder(const Experiment& experiment, std::shared_ptr<Model> model, const DataSource& data,
           const Compute& compute, RunDirectory& run, const TrainingState& start, bool resumed);

  // No row is there yet, and first_rows() has not been called.
  bool begins_log() const { return begins_log_; }
  // The model before its first update: that update's losses with the weights as they are, its
  // statistics and maps. `batches`: the micro-batches of the update.
  void first_rows(const TrainingState& now, Updater& updater, const MicroBatches& batches);

  // The probes for the update that makes `step`; null: no statistics are due.
  SiteProbes* before_update(int64_t step);
  // `tokens`: of this update. `loss`: where the step has looked at it. An update that is not finite
  // has its row, due or not. `last_of_status`: status.json may be written after it, and is to have
  // the numbers of the step that it names.
  void after_update(const TrainingState& now, const Updater::Result& result, int64_t tokens,
                    std::optional<double> loss, bool finite, bool last_of_status);
  void measured(int64_t examples, int64_t of);  // so far, for the progress alone
  // `test`: of the test part, in the end, where it is asked for.
  void evaluated(const TrainingState& now, const Evaluation& evaluation,
                 const std::optional<Evaluation>& test);
  // The maps, where they are due or this is the end, and the step's line of metrics.jsonl.
  void end_step(const TrainingState& now, bool end);
  // What an earlier process was to measure in the end: into the line of the step, where it has one.
  void evaluated_later(const TrainingState& now, const Evaluation& evaluation,
                       const std::optional<Evaluation>& test);
  // Everything so far is on the disk when it returns, with a checkpoint.
  void save(const TrainingState& now, const NamedTensors& optimizer, bool best);

  // The log ends as the run does: not as kRunning. -> the newest values, for status.json
  const Metrics& close(const TrainingState& now, RunState state);

 private:
  // For the row of this step.
  void take(const TrainingState& now, const Evaluation& evaluation,
            const std::optional<Evaluation>& test);
  void write_maps(int64_t step);
  void write_line(const TrainingState& now);
  void note(const TrainingRow& row);
  void say_notices();

  const Experiment& experiment_;
  std::shared_ptr<Model> model_;
  Compute compute_;
  RunDirectory& run_;
  bool begins_log_;
  std::vector<TrainingMetric> table_;
  MetricsFile metrics_;
  TrainingLog log_;
  Progress progress_;
  RetentionOptions retention_;
  struct {
    double wall_s = 0;
    int64_t tokens = 0;
  } last_row_;
  std::optional<GateDecisions> gates_;  // before the update under way, where its row is due
  TrainingRow row_;                     // of this step, not yet in metrics.jsonl
  Metrics newest_;
};

}  // namespace headlab
