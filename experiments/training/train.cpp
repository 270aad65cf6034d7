#include "experiments/training/train.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "core/torch.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/progress.h"
#include "experiments/system/signals.h"
#include "experiments/system/stopwatch.h"
#include "experiments/training/training_log.h"
#include "experiments/training/update.h"

namespace headlab {
namespace {

// What a checkpoint remembers beside weights and moments.
struct TrainerState {
  int64_t step = 0, tokens = 0;
  double wall_s = 0, best = std::numeric_limits<double>::infinity();
  int64_t since_best = 0;  // evaluations

  nlohmann::json json() const {
    nlohmann::json object{{"tokens", tokens}, {"wall_s", wall_s}, {"since_best", since_best}};
    if (std::isfinite(best)) object["best"] = best;
    return object;
  }
  static TrainerState from(const Checkpoint& checkpoint) {
    const auto& json = checkpoint.trainer;
    TrainerState state;
    state.step = checkpoint.step;
    state.tokens = json.value("tokens", int64_t{0});
    state.wall_s = json.value("wall_s", 0.0);
    state.since_best = json.value("since_best", int64_t{0});
    state.best = json.value("best", std::numeric_limits<double>::infinity());
    return state;
  }
};

RootAttributes root_attributes(const RunDirectory& run, const std::string& title) {
  std::ifstream file(run.path() / "config.yaml");
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  return {.title = title,
          .run_id = run.path().filename().string(),
          .config_yaml = config,
          .manifest_json = run.manifest().dump(),
          .created_utc = utc_now()};
}

bool half_precision(const TrainOptions& options, const at::Device& device) {
  // bf16 is slower than fp32 on a CPU without units for it, so it is never assumed there.
  return options.precision == "bf16" || (options.precision == "auto" && device.is_cuda());
}

class Trainer {
 public:
  Trainer(const Experiment& experiment, std::shared_ptr<Model> model, const DataSource& data,
          const at::Device& device, RunDirectory& run, const std::optional<Checkpoint>& resumed)
      : options_(experiment.train),
        logging_(experiment.log),
        seed_(static_cast<uint64_t>(experiment.seed)),
        model_(std::move(model)),
        data_(data),
        device_(device),
        run_(run),
        updater_(model_, schedule_of(options_, experiment.model.as<ModelOptions>().d_model),
                 adamw_of(options_),
                 {.seed = seed_,
                  .clip = options_.clip,
                  .label_smoothing = options_.label_smoothing,
                  .bf16 = half_precision(options_, device),
                  .task = &data.task()}),
        state_(resumed ? TrainerState::from(*resumed) : TrainerState{}),
        table_(training_metrics(experiment, *model_, data.task())),
        metrics_(run.path() / "metrics.jsonl", state_.step),
        log_(run.path() / "log.h5", root_attributes(run, experiment.name), experiment, *model_,
             data, table_, resumed ? std::optional(state_.step) : std::nullopt, state_.wall_s),
        progress_(state_.step, options_.steps, logging_.every) {
    say_notices();
    if (!log_.absent().empty())
      progress_.say(fmt::format("log.h5 was begun without {}, and goes on without",
                                fmt::join(log_.absent(), ", ")));
    retention_.keep_last = options_.checkpoint.keep_last;
    retention_.keep_best = options_.checkpoint.keep_best;
    if (resumed) {
      retention_.resumed_from = resumed->step;
      if (resumed->optimizer) updater_.optimizer().load_state(*resumed->optimizer);
    }
  }

  TrainOutcome run();

 private:
  void row_zero();
  // One update; false when it was not finite.
  bool update();
  void log_update(const Updater::Result& result, const std::optional<GateDecisions>& gates);
  Evaluation evaluate_batches(int64_t most);  // 0: the whole split
  void record(const Evaluation& evaluation);
  void write_row(int64_t step);
  void log_maps();
  void say_notices();
  void save(bool best);
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool done() const { return state_.step >= options_.steps || stopped_early(); }
  bool stopped_early() const {
    return options_.early_stop.patience > 0 && state_.since_best >= options_.early_stop.patience;
  }
  bool out_of_time() const { return options_.max_time && watch_.seconds() >= *options_.max_time; }
  double wall() const { return state_.wall_s + watch_.seconds(); }
  TrainOutcome finish(RunState state, int exit_code, const std::string& reason);

  const TrainOptions& options_;
  const LogOptions& logging_;
  uint64_t seed_;
  std::shared_ptr<Model> model_;
  const DataSource& data_;
  at::Device device_;
  RunDirectory& run_;
  Updater updater_;
  TrainerState state_;
  std::vector<TrainingMetric> table_;
  MetricsFile metrics_;
  TrainingLog log_;
  Progress progress_;
  RetentionOptions retention_;
  Stopwatch watch_;
  struct {
    double wall_s = 0;
    int64_t tokens = 0;
  } last_row_;
  TrainingRow row_;        // of this step, not yet in metrics.jsonl
  Metrics final_;          // the newest values, for status.json
  bool improved_ = false;  // by the evaluation of this step
  bool stops_ = false;     // after this step, by this signal or for want of time
  int signal_ = 0;
};

// The rows of step 0: the first update's losses with the weights as they were made.
void Trainer::row_zero() {
  auto& probe = log_.fresh_probe();
  const auto losses = updater_.measure(0, micro_batches(options_, data_, seed_, 0),
                                       logging_.stats_every > 0 ? &probe : nullptr);
  row_ = {.losses = TrainingRow::Losses::of(losses), .gates = gate_decisions(*model_)};
  log_.scalars(0, 0, 0, logged(table_, MetricGroup::kScalars, row_));
  if (logging_.stats_every > 0) log_.heads(0);
  log_maps();
  write_row(0);
}

bool Trainer::update() {
  const auto batches = micro_batches(options_, data_, seed_, state_.step);
  const bool statistics = logging_.stats_every > 0 && (state_.step + 1) % logging_.stats_every == 0;
  const bool logs = (state_.step + 1) % logging_.every == 0;
  const auto gates = logs ? gate_decisions(*model_) : std::nullopt;
  const auto result =
      updater_.step(state_.step, batches, statistics ? &log_.fresh_probe() : nullptr);
  ++state_.step;
  int64_t tokens = 0;
  for (const auto& batch : batches) tokens += batch.tokens();
  state_.tokens += tokens;
  signal_ = StopSignals::received();
  stops_ = signal_ != 0 || out_of_time();
  const bool looks = reads_loss(device_, due(logging_.every) || due(options_.checkpoint.every) ||
                                             due(options_.eval_every) || stops_ || done());
  const double loss = looks ? result.losses.nll.item<double>() : 0;
  const bool finite =
      !looks || (std::isfinite(loss) && std::isfinite(result.grad_norm.item<double>()));
  progress_.step(state_.step, tokens, looks ? std::optional(loss) : std::nullopt);
  if (due(logging_.every) || !finite) log_update(result, gates);
  if (statistics) log_.heads(state_.step);
  return finite;
}

void Trainer::log_update(const Updater::Result& result, const std::optional<GateDecisions>& gates) {
  const double now = wall();
  row_ = {.losses = TrainingRow::Losses::of(result.losses),
          .update = {{.lr = result.lr,
                      .grad_norm = result.grad_norm.item<double>(),
                      .tokens_per_s = static_cast<double>(state_.tokens - last_row_.tokens) /
                                      std::max(now - last_row_.wall_s, 1e-9)}},
          .gates = gates};
  log_.scalars(state_.step, now, state_.tokens, logged(table_, MetricGroup::kScalars, row_));
  last_row_ = {now, state_.tokens};
}

Evaluation Trainer::evaluate_batches(int64_t most) {
  const auto result =
      evaluate(*model_, data_, Split::kValidation, options_.eval_batch, most, device_);
  improved_ = result.loss() < state_.best - options_.early_stop.min_delta;
  state_.since_best = improved_ ? 0 : state_.since_best + 1;
  if (improved_) state_.best = result.loss();
  return result;
}

void Trainer::record(const Evaluation& evaluation) {
  row_.evaluation = evaluation;
  log_.eval(state_.step, logged(table_, MetricGroup::kEvals, row_));
  progress_.validation(evaluation.loss());
}

void Trainer::write_row(int64_t step) {
  const auto line = line_of(table_, row_);
  row_ = {};
  if (line.empty()) return;
  metrics_.append({step, state_.tokens, wall(), line});
  for (const auto& [name, value] : line) final_[name] = value;
}

void Trainer::log_maps() {
  log_.maps(state_.step, device_);
  say_notices();
}

void Trainer::say_notices() {
  for (const auto& notice : log_.take_notices()) progress_.say(notice);
}

void Trainer::save(bool best) {
  metrics_.sync();
  log_.sync();
  auto state = state_;
  state.wall_s = wall();
  save_checkpoint(
      run_.path(),
      {state_.step, module_tensors(*model_), updater_.optimizer().state(), state.json()}, best,
      retention_);
  run_.running(state_.step, final_);
}

TrainOutcome Trainer::finish(RunState state, int exit_code, const std::string& reason) {
  write_row(state_.step);
  log_.close(state == RunState::kFinished  ? LogStatus::kFinished
             : state == RunState::kStopped ? LogStatus::kStopped
                                           : LogStatus::kFailed);
  progress_.finish();
  return {{state, reason, state_.step, final_}, exit_code};
}

TrainOutcome Trainer::run() {
  StopSignals signals;
  model_->train();
  last_row_ = {state_.wall_s, state_.tokens};
  if (state_.step == 0) row_zero();
  bool ends = done(), early = stopped_early();
  while (!ends) {
    improved_ = false;
    if (!update())
      return finish(
          RunState::kDiverged, kDiverged,
          "the loss or its gradient is not finite at step " + std::to_string(state_.step));
    const bool last = state_.step >= options_.steps;
    std::optional<Evaluation> evaluation;
    if (due(options_.eval_every) && !last) evaluation = evaluate_batches(options_.eval_batches);
    // The whole split's loss, which does not compare with those of a part, undoes no early stop.
    ends = done(), early = stopped_early();
    if (ends) evaluation = evaluate_batches(0);
    if (evaluation) record(*evaluation);
    if (due(logging_.attention.every) || ends) log_maps();
    write_row(state_.step);
    const bool best = improved_ && options_.checkpoint.keep_best;
    if (due(options_.checkpoint.every) || best || stops_ || ends) save(improved_);
    if (stops_ && !ends) {
      if (signal_ == 0) return finish(RunState::kStopped, kResumable, "train.max_time is over");
      return finish(RunState::kStopped, StopSignals::exit_code(signal_),
                    "signal " + std::to_string(signal_));
    }
  }
  return finish(RunState::kFinished, kDone,
                early ? "the validation loss no longer gets better" : "");
}

}  // namespace

bool reads_loss(const at::Device& device, bool due) { return device.is_cpu() || due; }

TrainOutcome train(const Experiment& experiment, std::shared_ptr<Model> model,
                   const DataSource& data, const at::Device& device, RunDirectory& run,
                   const std::optional<Checkpoint>& resumed) {
  if (resumed) load_model(*model, resumed->model);
  return Trainer(experiment, std::move(model), data, device, run, resumed).run();
}

}  // namespace headlab
