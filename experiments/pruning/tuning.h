// Training between rounds of pruning, as `run` trains, kept in a run of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "experiments/runs/open_run.h"
#include "experiments/runs/run_files.h"
#include "experiments/system/signals.h"
#include "experiments/training/recorder.h"
#include "experiments/training/train.h"
#include "experiments/training/training_state.h"

namespace headlab {

// From its first update on there is a run at `out`: `running` until finish(), `stopped` or
// `diverged` where the training ends before its time, `failed` after fail().
class Tuning {
 public:
  // `updates` after each of `rounds`. `out`: where nothing is yet; empty: nothing is kept.
  Tuning(std::filesystem::path out, int64_t updates, int64_t rounds, const Compute& compute);

  // Trains run.model, with fresh moments, and leaves it in eval mode; run.step moves on.
  // run.experiment gets the settings of all rounds. False: it ended before its time, and so does
  // the pruning. Every round has the same model, with fewer heads each time.
  bool train(OpenedRun& run);

  // Whether a signal has come since the last round, with rounds left: then it ends here.
  bool stopped();

  // How it ended, where that was before its time.
  const std::optional<TrainOutcome>& ended() const { return ended_; }
  int64_t round() const { return round_; }              // the last that began, from 1
  int64_t updates_left() const;                         // of that round
  bool kept() const { return directory_.has_value(); }  // by a run that is not yet whole

  // The run is whole: what pruning found is put into it by `add_files` and, as `report`, into the
  // manifest. `model`: run.model, or what takes its place in the last checkpoint.
  void finish(const OpenedRun& run, const std::shared_ptr<Model>& model,
              std::optional<double> validation_loss, const nlohmann::ordered_json& report,
              const std::function<void(const std::filesystem::path& run)>& add_files);
  // For who has an error to report: another one does not take its place.
  void fail(const std::string& reason) noexcept;

 private:
  void begin(OpenedRun& run);
  void end(TrainOutcome outcome);  // before its time

  std::filesystem::path out_;
  int64_t updates_, rounds_;
  Compute compute_;
  int64_t round_ = 0;
  int64_t round_end_ = 0;  // step
  Experiment experiment_;
  TrainingState state_;
  std::optional<StopSignals> signals_;  // from the first update on, also between rounds
  std::optional<RunDirectory> directory_;
  std::optional<Recorder> recorder_;
  std::optional<TrainOutcome> ended_;
};

}  // namespace headlab
