// Training between rounds of pruning, as `run` trains, kept in a run of its own, and what of the
// pruning is known so far, so that another process can go on with it.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "experiments/runs/open_run.h"
#include "experiments/runs/run_files.h"
#include "experiments/system/signals.h"
#include "experiments/training/recorder.h"
#include "experiments/training/train.h"
#include "experiments/training/training_state.h"

namespace headlab {

// Before its first update there is a run at `out`: `running` until finish(), `stopped` or
// `diverged` where the training ends before its time, `failed` after fail(). Beside checkpoints the
// run then holds tuning/: what was measured and decided between them.
class Tuning {
 public:
  using Json = nlohmann::ordered_json;

  // `updates` after each of `rounds`. `out`: where nothing is yet, or what this tuning has begun;
  // empty: nothing is kept. `asked`: tuning_json() of the command.
  Tuning(const std::filesystem::path& out, int64_t updates, int64_t rounds, const Compute& compute,
         Json asked = Json::object());
  // One that keeps checkpoints alone, in `folder`.
  static Tuning in_folder(const std::filesystem::path& folder, int64_t updates, int64_t rounds,
                          const Compute& compute);

  // Where another process has begun it, takes over what that has left: `run`, which is as it was
  // before the first round, has the weights of the last checkpoint then. RunError where something
  // else lies at `out`.
  void resume(OpenedRun& run);

  // The report that finish() was given, where the run at `out` is whole; `run` as for resume().
  // RunError where another process writes it, or something else lies there.
  std::optional<Json> finished(OpenedRun run) const;
  // What measured() was given of a round by another process, where the weights are those behind it;
  // the round is passed over then. 0: before the first.
  std::optional<Json> measured_round(int64_t round);
  // What train() was given of the round by another process; null: none has begun it.
  Json decided(int64_t round) const;
  // Trains run.model, with fresh moments, and leaves it in eval mode; run.step moves on.
  // run.experiment gets the settings of all rounds. False: it ended before its time, and so does
  // the pruning. Every round has the same model, with fewer heads each time. `decided`: which heads
  // these are, and what else is to be known of the round.
  bool train(OpenedRun& run, const Json& decided = nullptr);
  double seconds() const;            // of training in this round, in all processes
  double seconds_here() const;       // of training in this process
  void measured(const Json& round);  // behind this round
  // What is found behind the last round; null: nothing was kept.
  void keep(const std::string& name, Json value);
  Json kept_value(const std::string& name) const;

  // Whether a signal has come, where another process can go on: then it ends here.
  bool stopped();
  // The same where training beside it was stopped.
  void stop(const TrainOutcome& outcome);

  // How it ended, where that was before its time.
  const std::optional<TrainOutcome>& ended() const { return ended_; }
  int64_t round() const { return round_; }              // the last that began, from 1
  int64_t updates_left() const;                         // of that round
  bool kept() const { return directory_.has_value(); }  // by a run that is not yet whole
  // For the checkpoints of a training beside it; empty: nothing is kept.
  std::filesystem::path uncut_folder() const;

  // The run is whole: what pruning found is put into it by `add_files` and, as `report`, into the
  // manifest. `model`: run.model, or what takes its place in the last checkpoint. A process that
  // does it again leaves the same.
  void finish(const OpenedRun& run, const std::shared_ptr<Model>& model,
              std::optional<double> validation_loss, const Json& report,
              const std::function<void(const std::filesystem::path& run)>& add_files);
  // Removes what the finished run at `out` no longer needs, where a process died at that.
  static void clear(const std::filesystem::path& out);
  // For who has an error to report: another one does not take its place.
  void fail(const std::string& reason) noexcept;

 private:
  Tuning(std::filesystem::path out, std::filesystem::path folder, int64_t updates, int64_t rounds,
         const Compute& compute, Json asked);
  void set(OpenedRun& run) const;
  void begin(OpenedRun& run);
  void take_run(OpenedRun& run);
  void take_folder(OpenedRun& run);
  void take(OpenedRun& run, const Checkpoint& checkpoint);
  void read_kept();
  void write_kept() const;
  bool keeps() const { return !out_.empty() || !folder_.empty(); }
  int64_t begin_of(int64_t round) const { return first_ + (round - 1) * updates_; }
  void end(TrainOutcome outcome);  // before its time

  std::filesystem::path out_, folder_;  // one of them is empty, or both
  int64_t updates_, rounds_;
  Compute compute_;
  Json asked_, kept_ = Json::object();
  bool begun_ = false, resumed_ = false;
  int64_t round_ = 0;
  int64_t first_ = 0, round_end_ = 0;  // steps: before the first round, behind this one
  double wall_before_ = 0;             // seconds that processes before this one have trained
  Experiment experiment_;
  TrainingState state_;
  std::optional<NamedTensors> moments_;  // of the checkpoint that is gone on from
  std::optional<StopSignals> signals_;   // where it is kept from the beginning, also between rounds
  std::optional<RunDirectory> directory_;
  std::optional<Recorder> recorder_;
  std::optional<TrainOutcome> ended_;
};

}  // namespace headlab
