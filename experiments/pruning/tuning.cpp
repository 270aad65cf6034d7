#include "experiments/pruning/tuning.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/torch.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/signals.h"

namespace headlab {

Tuning::Tuning(std::filesystem::path out, int64_t updates, int64_t rounds, const Compute& compute)
    : out_(std::move(out)), updates_(updates), rounds_(rounds), compute_(compute) {}

void Tuning::begin(OpenedRun& run) {
  go_on(run.experiment.train, run.step, updates_ * rounds_, *run.data);
  run.experiment.train.early_stop.patience = 0;  // pruning may cost loss: no reason to stop
  experiment_ = run.experiment;
  use_settings(experiment_.train);
  state_.step = run.step;
  signals_.emplace();
  if (out_.empty()) return;
  directory_.emplace(RunDirectory::create(
      out_, to_yaml(write_block(experiment_)),
      manifest_of(run, experiment_, *run.model, compute_.device), data_text(run.data_description)));
  recorder_.emplace(experiment_, run.model, *run.data, compute_, *directory_, state_,
                    /*resumed=*/false);
}

bool Tuning::train(OpenedRun& run) {
  if (updates_ == 0) return true;
  if (++round_ == 1) begin(run);
  round_end_ = state_.step + updates_;
  auto this_round = experiment_;
  this_round.train.steps = round_end_;
  if (auto& most = this_round.train.max_time) *most -= state_.wall_s;
  // A loss with more heads is no mark for one with fewer.
  state_.best = std::numeric_limits<double>::infinity();
  state_.since_best = 0;
  auto outcome = train_further(this_round, run.model, *run.data, compute_, state_, std::nullopt,
                               recorder_ ? &*recorder_ : nullptr);
  run.model->eval();
  run.step = state_.step;
  if (outcome.status.state == RunState::kFinished && outcome.signal != 0 && round_ < rounds_) {
    outcome.status.state = RunState::kStopped;
    outcome.status.reason = signal_text(outcome.signal);
    outcome.exit_code = StopSignals::exit_code(outcome.signal);
  }
  if (outcome.status.state == RunState::kFinished) return true;
  end(std::move(outcome));
  return false;
}

bool Tuning::stopped() {
  const int signal = signals_ && round_ < rounds_ ? StopSignals::received() : 0;
  if (signal == 0) return false;
  end({{RunState::kStopped, signal_text(signal), state_.step},
       StopSignals::exit_code(signal),
       signal});
  return true;
}

void Tuning::end(TrainOutcome outcome) {
  if (recorder_) {
    outcome.status.metrics = recorder_->close(state_, outcome.status.state);
    directory_->end(outcome.status);
  }
  ended_ = std::move(outcome);
}

int64_t Tuning::updates_left() const { return std::max<int64_t>(0, round_end_ - state_.step); }

void Tuning::finish(const OpenedRun& run, const std::shared_ptr<Model>& model,
                    std::optional<double> validation_loss, const nlohmann::ordered_json& report,
                    const std::function<void(const std::filesystem::path& run)>& add_files) {
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
  recorder_.reset();
  directory_.reset();
}

void Tuning::fail(const std::string& reason) noexcept {
  if (kept() && !ended_) directory_->fail(reason);
}

}  // namespace headlab
