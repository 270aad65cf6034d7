#include "experiments/pruning/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/replacement_file.h"
#include "experiments/runs/begin_run.h"
#include "experiments/runs/checkpoint_state.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/output.h"
#include "experiments/system/signals.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKept = "tuning";  // a folder of the run, with what is known so far

// Without links, and without a slash at its end; "" stays.
fs::path plain_path(const fs::path& path) {
  if (path.empty()) return path;
  const auto plain = fs::weakly_canonical(path);
  return plain.has_filename() ? plain : plain.parent_path();
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw RunError(fmt::format("{}: cannot be made: {}", path.string(), error.message()));
}

}  // namespace

Tuning::Tuning(fs::path out, fs::path folder, int64_t updates, int64_t rounds,
               const Compute& compute, Json asked)
    : out_(std::move(out)),
      folder_(std::move(folder)),
      updates_(updates),
      rounds_(rounds),
      compute_(compute),
      asked_(std::move(asked)) {
  if (updates_ > 0 && keeps()) signals_.emplace();
}

Tuning::Tuning(const fs::path& out, int64_t updates, int64_t rounds, const Compute& compute,
               Json asked)
    : Tuning(plain_path(out), {}, updates, rounds, compute, std::move(asked)) {}

Tuning Tuning::in_folder(const fs::path& folder, int64_t updates, int64_t rounds,
                         const Compute& compute) {
  return {{}, folder, updates, rounds, compute, {}};
}

void Tuning::resume(OpenedRun& run) {
  if (begun_ || updates_ == 0 || !keeps()) return;
  if (!folder_.empty() || find_run(out_).kind != FoundRun::Kind::kAbsent) begin(run);
}

// The settings of all rounds.
void Tuning::set(OpenedRun& run) const {
  go_on(run.experiment.train, run.step, updates_ * rounds_, *run.data);
  run.experiment.train.early_stop.patience = 0;  // pruning may cost loss: no reason to stop
}

std::optional<Tuning::Json> Tuning::finished(OpenedRun run) const {
  if (out_.empty() || !already_finished(out_, {})) return std::nullopt;
  set(run);
  auto manifest = process_manifest(run.experiment, data_json(run.data->files()), compute_.device);
  manifest["tuning"] = asked_;
  require_same_tuning(out_, run.experiment, manifest);
  clear(out_);
  return read_manifest(out_).value("pruned", Json());
}

void Tuning::begin(OpenedRun& run) {
  begun_ = true;
  first_ = state_.step = run.step;
  set(run);
  experiment_ = run.experiment;
  use_settings(experiment_.train);
  if (!signals_) signals_.emplace();
  if (!folder_.empty()) take_folder(run);
  if (!out_.empty()) take_run(run);
  wall_before_ = state_.wall_s;
}

void Tuning::take_run(OpenedRun& run) {
  auto manifest = manifest_of(run, experiment_, *run.model, compute_.device);
  manifest["tuning"] = asked_;
  const auto since = changed_since(out_, manifest);
  auto begun =
      begin_run(out_, to_yaml(write_block(experiment_)), manifest, data_text(run.data_description),
                {}, [&] { require_same_tuning(out_, experiment_, manifest); });
  if (!begun.directory)
    throw RunError(out_.string() + ": another process has finished it meanwhile");
  if (!begun.warning.empty()) tell("{}", begun.warning);
  directory_.emplace(std::move(*begun.directory));
  if (begun.checkpoint) {
    take(run, *begun.checkpoint);
    read_kept();
    tell("goes on from step {}", state_.step);
    for (const auto& told : since) tell("since it began: {}", told);
  }
  const bool trained = state_.step > first_;
  if (!trained)  // rows of a process that was killed before it had saved an update
    for (const char* rows : {"metrics.jsonl", "log.h5"}) {
      std::error_code none;  // what stays is said by who writes it
      fs::remove(out_ / rows, none);
    }
  recorder_.emplace(experiment_, run.model, *run.data, compute_, *directory_, state_, trained);
}

void Tuning::take_folder(OpenedRun& run) {
  make_folder(folder_);
  std::string warning;
  std::optional<Checkpoint> checkpoint;
  try {
    checkpoint = load_latest(folder_, &warning);
  } catch (const RunError& error) {  // all are damaged: what they lead to can be had anew
    warning = error.what();
    std::error_code none;
    fs::remove_all(folder_ / "ckpt", none);
  }
  if (!warning.empty()) tell("{}", warning);
  if (!checkpoint) return;
  rewind_checkpoints(folder_, checkpoint->step);
  take(run, *checkpoint);
}

void Tuning::take(OpenedRun& run, const Checkpoint& checkpoint) {
  resumed_ = true;
  load_model(*run.model, checkpoint.model);
  run.model->eval();
  state_ = TrainingState::of(checkpoint);
  moments_ = checkpoint.optimizer;
  run.step = state_.step;
}

void Tuning::read_kept() {
  try {
    kept_ = read_state(out_ / kKept).at("kept");
  } catch (const DataError& error) {
    throw RunError(
        fmt::format("{}; it has what was measured and decided between the rounds: remove {}, and "
                    "the same command begins anew",
                    error.what(), out_.string()));
  }
}

void Tuning::write_kept() const {
  if (!directory_) return;
  make_folder(out_ / kKept);
  replace_file(out_ / kKept / kStateFile,
               sealed_state({{"schema_version", kStateVersion}, {"kept", kept_}}));
}

std::optional<Tuning::Json> Tuning::measured_round(int64_t round) {
  const auto rounds = kept_value("rounds");
  const int64_t end = begin_of(round + 1);
  if (!resumed_ || state_.step < end || round >= std::ssize(rounds)) return std::nullopt;
  if (round > 0) round_ = round, round_end_ = end;
  return rounds[round];
}

Tuning::Json Tuning::decided(int64_t round) const {
  const auto begun = kept_value("begun");
  if (!resumed_ || round >= std::ssize(begun)) return nullptr;
  return begun[round]["decided"];
}

bool Tuning::train(OpenedRun& run, const Json& decided) {
  if (updates_ == 0) return true;
  if (!begun_) begin(run);
  ++round_;
  round_end_ = begin_of(round_) + updates_;
  if (state_.step <= begin_of(round_)) {
    // A loss with more heads is no mark for one with fewer.
    state_.best = std::numeric_limits<double>::infinity();
    state_.since_best = 0;
    moments_.reset();
    kept_["begun"][round_] = {{"decided", decided}, {"wall_s", state_.wall_s}};
    write_kept();
    if (recorder_ && !resumed_ && round_ == 1) {
      save_checkpoint(out_, {state_.step, module_tensors(*run.model), {}, state_.json()},
                      /*best=*/false);
      directory_->running(state_.step);
    }
  }
  auto this_round = experiment_;
  this_round.train.steps = round_end_;
  if (auto& most = this_round.train.max_time) *most -= state_.wall_s - wall_before_;
  const auto& options = experiment_.train.checkpoint;
  SaveTraining save;
  if (!folder_.empty())
    save = [&](const TrainingState& state, const NamedTensors& moments) {
      save_checkpoint(folder_, {state.step, module_tensors(*run.model), moments, state.json()},
                      /*best=*/false, {.keep_last = options.keep_last, .keep_best = false});
    };
  auto outcome = train_further(this_round, run.model, *run.data, compute_, state_,
                               std::exchange(moments_, std::nullopt),
                               recorder_ ? &*recorder_ : nullptr, keeps(), save);
  run.model->eval();
  run.step = state_.step;
  if (outcome.status.state == RunState::kFinished && outcome.signal != 0 &&
      (keeps() || round_ < rounds_)) {
    outcome.status.state = RunState::kStopped;
    outcome.status.reason = signal_text(outcome.signal);
    outcome.exit_code = StopSignals::exit_code(outcome.signal);
  }
  if (outcome.status.state == RunState::kFinished) return true;
  end(std::move(outcome));
  return false;
}

double Tuning::seconds() const {
  const auto begun = kept_value("begun");
  return round_ < std::ssize(begun) ? state_.wall_s - begun[round_].value("wall_s", 0.0) : 0;
}

double Tuning::seconds_here() const { return state_.wall_s - wall_before_; }

void Tuning::measured(const Json& round) {
  kept_["rounds"][round_] = round;
  write_kept();
}

void Tuning::keep(const std::string& name, Json value) {
  kept_[name] = std::move(value);
  write_kept();
}

Tuning::Json Tuning::kept_value(const std::string& name) const { return kept_.value(name, Json()); }

bool Tuning::stopped() {
  if (ended_) return true;
  const int signal = signals_ && (keeps() || round_ < rounds_) ? StopSignals::received() : 0;
  if (signal == 0) return false;
  end({{RunState::kStopped, signal_text(signal), state_.step},
       StopSignals::exit_code(signal),
       signal});
  return true;
}

void Tuning::stop(const TrainOutcome& outcome) {
  end({{RunState::kStopped, outcome.status.reason, state_.step},
       outcome.exit_code,
       outcome.signal});
}

void Tuning::end(TrainOutcome outcome) {
  if (recorder_) {
    outcome.status.metrics = recorder_->close(state_, outcome.status.state);
    directory_->end(outcome.status);
  }
  ended_ = std::move(outcome);
}

int64_t Tuning::updates_left() const { return std::max<int64_t>(0, round_end_ - state_.step); }

fs::path Tuning::uncut_folder() const { return out_.empty() ? out_ : out_ / kKept / "uncut"; }

void Tuning::finish(const OpenedRun& run, const std::shared_ptr<Model>& model,
                    std::optional<double> validation_loss, const Json& report,
                    const std::function<void(const fs::path& run)>& add_files) {
  const auto& options = experiment_.train.checkpoint;
  if (model != run.model)
    save_checkpoint(directory_->path(), untrained_checkpoint(*model, run.step, validation_loss),
                    /*best=*/true,
                    {.keep_last = options.keep_last, .keep_best = options.keep_best});
  directory_->note("parameters", parameters_json(*model, experiment_.train));
  directory_->note("pruned", report);
  add_files(directory_->path());
  const auto& metrics = recorder_->close(state_, RunState::kFinished);
  directory_->end({RunState::kFinished, "", run.step, metrics});
  clear(out_);
  recorder_.reset();
  directory_.reset();
}

void Tuning::clear(const fs::path& out) {
  std::error_code none;  // what stays does no harm
  fs::remove_all(out / kKept, none);
}

void Tuning::fail(const std::string& reason) noexcept {
  if (kept() && !ended_) directory_->fail(reason);
}

}  // namespace headlab
