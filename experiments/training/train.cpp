#include "experiments/training/train.h"

#include <cmath>
#include <cstdlib>

#include "core/torch.h"
#include "experiments/data/test_part.h"
#include "experiments/inference/translated_text.h"
#include "experiments/models/finite_weights.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_machine.h"
#include "experiments/system/busy_cores.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/signals.h"
#include "experiments/system/startable_threads.h"
#include "experiments/system/stopwatch.h"
#include "experiments/training/rank_weights.h"
#include "experiments/training/recorder.h"
#include "experiments/training/training_state.h"
#include "experiments/training/update.h"

namespace headlab {
namespace {

bool half_precision(const TrainOptions& options, const at::Device& device) {
  return resolved_precision(options, device_type_of(device)) == "bf16";
}

// What a rank has to say after an update.
struct Word {
  int signal = 0;
  bool out_of_time = false;
  int64_t tokens = 0;
};

// What all have said: the signal of the first rank that has had one, whether one of them is out of
// time, and the tokens of all.
Word word_of_all(Comm& comm, const Word& own) {
  if (comm.size() == 1) return own;
  auto words = at::zeros({comm.size() + 2}, at::kLong);
  auto* word = words.data_ptr<int64_t>();
  word[comm.rank()] = own.signal;
  word[comm.size()] = own.out_of_time ? 1 : 0;
  word[comm.size() + 1] = own.tokens;
  comm.sum(words);
  Word all{.out_of_time = word[comm.size()] > 0, .tokens = word[comm.size() + 1]};
  for (int r = 0; r < comm.size() && all.signal == 0; ++r) all.signal = static_cast<int>(word[r]);
  return all;
}

class Trainer {
 public:
  Trainer(const Experiment& experiment, std::shared_ptr<Model> model, const DataSource& data,
          const Compute& compute, TrainingState& state, const std::optional<NamedTensors>& moments,
          Recorder* recorder, bool resumable, SaveTraining save)
      : experiment_(experiment),
        options_(experiment.train),
        seed_(static_cast<uint64_t>(experiment.seed)),
        model_(std::move(model)),
        data_(data),
        steps_(options_.total_steps(data)),
        compute_(compute),
        comm_(compute.comm ? *compute.comm : alone()),
        state_(state),
        recorder_(recorder),
        resumable_(resumable),
        save_(std::move(save)),
        updater_(model_,
                 schedule_of(options_, experiment.model.as<ModelOptions>().d_model,
                             options_.epoch_size(data)),
                 adamw_of(options_),
                 {.seed = seed_,
                  .clip = options_.clip,
                  .label_smoothing = options_.label_smoothing,
                  .bf16 = half_precision(options_, compute.device),
                  .backend = compute.backend,
                  .task = &data.task(),
                  .comm = &comm_,
                  .each_round = sums_each_round(options_, comm_)}),
        wall_before_(state.wall_s) {
    if (moments) updater_.optimizer().load_state(*moments);
    if (comm_.first()) return;
    probes_ = training_probes(experiment, *model_, data);
  }

  TrainOutcome run() {
    StopSignals signals;
    model_->train();
    share_weights(*model_, comm_);
    if (recorder_ && recorder_->begins_log())
      recorder_->first_rows(now(), updater_, micro_batches(options_, data_, seed_, state_.step));
    ends_ = done(), early_ = stopped_early();
    if (!ends_) signal_ = signal_of_all();
    if (signal_ != 0)  // before the first update: there is nothing that is not saved
      return ended(RunState::kStopped, StopSignals::exit_code(signal_), signal_text(signal_));
    if (ends_ && state_.unmeasured && recorded()) measure_the_end();
    while (!ends_) {
      if (!update())
        return ended(
            RunState::kDiverged, kDiverged,
            "the loss or its gradient is not finite at step " + std::to_string(state_.step));
      end_step();
      if (!stops_ || ends_) continue;
      if (signal_ == 0) return ended(RunState::kStopped, kResumable, "train.max_time is over");
      return ended(RunState::kStopped, StopSignals::exit_code(signal_), signal_text(signal_));
    }
    if (state_.unmeasured)
      return ended(RunState::kStopped, StopSignals::exit_code(signal_), kMeasurementCutShort);
    if (cut_short_)
      return ended(RunState::kFinished, StopSignals::exit_code(signal_), kMeasurementCutShort);
    return ended(RunState::kFinished, kDone,
                 early_ ? "the validation loss no longer gets better" : "");
  }

 private:
  // Whether this training has a log: that of rank 0.
  bool recorded() const { return recorder_ || !comm_.first(); }
  int signal_of_all() const {
    return word_of_all(comm_, {.signal = StopSignals::received()}).signal;
  }
  SiteProbes* probes_of(int64_t step) {
    if (recorder_) return recorder_->before_update(step);
    if (!probes_ || !due_after(experiment_, step).statistics) return nullptr;
    probes_->reset();
    return probes_.get();
  }
  // One update; false when it was not finite.
  bool update() {
    const auto batches = micro_batches(options_, data_, seed_, state_.step, comm_);
    const auto result = updater_.step(state_.step, batches, probes_of(state_.step + 1));
    ++state_.step;
    Word word{.signal = StopSignals::received(), .out_of_time = out_of_time()};
    for (const auto& batch : batches.batches) word.tokens += batch.tokens();
    word = word_of_all(comm_, word);
    const int64_t tokens = word.tokens;
    state_.tokens += tokens;
    signal_ = word.signal;
    stops_ = signal_ != 0 || word.out_of_time;
    const auto due = due_after(experiment_, state_.step);
    const bool last_of_status = due.checkpoint || due.evaluation || stops_ || done();
    std::optional<double> loss;
    if (reads_loss(compute_.device, due.row || last_of_status))
      loss = result.losses.nll.item<double>();
    const bool finite =
        !loss || (std::isfinite(*loss) && std::isfinite(result.grad_norm.item<double>()));
    if (recorder_) recorder_->after_update(now(), result, tokens, loss, finite, last_of_status);
    return finite;
  }

  // What follows an update that was: evaluation, maps, checkpoint.
  void end_step() {
    evaluation_.reset();
    judged_ = improved_ = false;
    const auto due = due_after(experiment_, state_.step);
    if (due.evaluation && state_.step < steps_ && evaluates())
      judge(*(evaluation_ = evaluate(*model_, judging_sample(), compute_)));
    ends_ = done(), early_ = stopped_early();
    if (!recorded()) {
      if (save_ && (due.checkpoint || stops_ || ends_)) save_(now(), updater_.optimizer().state());
      return;
    }
    if (ends_) {
      evaluation_ = evaluate_whole_split();
      state_.unmeasured = !evaluation_;
    }
    if (evaluation_) {
      evaluation_->bleu = measure_bleu();
      if (recorder_) recorder_->evaluated(now(), *evaluation_, test_);
    }
    if (recorder_) recorder_->end_step(now(), ends_);
    const bool best = improved_ && options_.checkpoint.keep_best;
    if (due.checkpoint || best || stops_ || ends_) save();
  }

  void save() {
    require_same_weights(*model_, comm_);
    if (recorder_) recorder_->save(now(), updater_.optimizer().state(), improved_);
  }

  // Of the validation split.
  Sample judging_sample() const {
    return {&data_, Split::kValidation, options_.eval_batch, options_.eval_batches};
  }

  // The last step is judged by the same examples as those before it, which the whole split begins
  // with: a loss over all of it does not compare with theirs. A signal ends the measurement, which
  // may take hours: none where the training can go on with it, else that of those examples. Sets
  // test_, too, where a test part is asked for.
  std::optional<Evaluation> evaluate_whole_split() {
    const auto judging = judging_sample();
    const int64_t least = resumable_ ? 0 : judging.examples();
    const auto parts =
        evaluate_parts(*model_, judging, {judging.most, 0}, compute_, [&](int64_t examples) {
          return goes_on(Split::kValidation, examples) || examples < least;
        });
    const bool whole = !parts.back().means.empty();
    test_ = whole && measures_test() ? evaluate_test() : std::nullopt;
    cut_short_ = !whole || (measures_test() && !test_);
    if (cut_short_ && resumable_) return std::nullopt;
    if (!judged_) judge(parts.front());
    return whole ? parts.back() : parts.front();
  }

  // None: a signal cut it short.
  std::optional<Evaluation> evaluate_test() {
    const auto measured =
        evaluate_parts(*model_, {&data_, Split::kTest, options_.eval_batch}, {0}, compute_,
                       [&](int64_t examples) { return goes_on(Split::kTest, examples); })
            .front();
    return measured.means.empty() ? std::nullopt : std::optional(measured);
  }
  bool measures_test() const {
    return asks_for_test(experiment_.data) && data_.examples(Split::kTest) > 0;
  }

  // Where it is due, and no signal has come.
  std::optional<double> measure_bleu() {
    const int64_t every = options_.bleu_every;
    if (every == 0 || signal_ != 0 || (!ends_ && state_.step % every != 0)) return std::nullopt;
    const auto& model = experiment_.model.as<ModelOptions>();
    const BeamOptions greedy{.cache = why_no_cache(*model_, model, "train.bleu_every").empty()};
    return bleu_of(*model_, data_, Split::kValidation, options_.eval_batch, greedy, compute_)
        .score();
  }

  // Tells how far the measurement of a split is; whether no signal has come.
  bool goes_on(Split split, int64_t examples) {
    if (recorder_) recorder_->measured(examples, data_.examples(split));
    if (signal_ == 0) signal_ = signal_of_all();
    return signal_ == 0;
  }

  // What a signal cut off behind the last update.
  void measure_the_end() {
    judged_ = state_.step < steps_;  // where it ended early, by the evaluation that ended it
    auto evaluation = evaluate_whole_split();
    if (!evaluation) return;
    evaluation->bleu = measure_bleu();
    state_.unmeasured = false;
    if (recorder_) recorder_->evaluated_later(now(), *evaluation, test_);
    save();
  }

  // Of train.eval_batches: whether it is the best.
  void judge(const Evaluation& evaluation) {
    judged_ = true;
    improved_ = evaluation.loss() < state_.best - options_.early_stop.min_delta;
    state_.since_best = improved_ ? 0 : state_.since_best + 1;
    if (improved_) state_.best = evaluation.loss();
  }

  bool done() const { return state_.step >= steps_ || stopped_early(); }
  bool stopped_early() const {
    return options_.early_stop.patience > 0 && state_.since_best >= options_.early_stop.patience;
  }
  bool evaluates() const { return recorded() || options_.early_stop.patience > 0; }
  bool out_of_time() const { return options_.max_time && watch_.seconds() >= *options_.max_time; }
  const TrainingState& now() {
    state_.wall_s = wall_before_ + watch_.seconds();
    return state_;
  }
  TrainOutcome ended(RunState state, int exit_code, const std::string& reason = "") {
    return {{state, reason, now().step}, exit_code, signal_};
  }

  const Experiment& experiment_;
  const TrainOptions& options_;
  uint64_t seed_;
  std::shared_ptr<Model> model_;
  const DataSource& data_;
  int64_t steps_;  // of the whole run
  Compute compute_;
  Comm& comm_;
  TrainingState& state_;
  Recorder* recorder_;
  std::unique_ptr<SiteProbes> probes_;  // of a rank that has no recorder
  bool resumable_;
  SaveTraining save_;
  Updater updater_;
  double wall_before_;
  Stopwatch watch_;
  std::optional<Evaluation> evaluation_;  // the newest of this step
  std::optional<Evaluation> test_;        // of the test part, in the end
  bool judged_ = false,
       improved_ = false;              // this step, by the batches that every step is judged by
  bool ends_ = false, early_ = false;  // the training, with this step
  bool stops_ = false;                 // after this step, by this signal or for want of time
  bool cut_short_ = false;             // the last measurement, by a signal, to what it then had
  int signal_ = 0;
};

}  // namespace

bool reads_loss(const at::Device& device, bool due) { return device.is_cpu() || due; }

std::string signal_text(int signal) { return "signal " + std::to_string(signal); }

void use_settings(const TrainOptions& options) {
  if (options.threads) {
    require_startable_threads(static_cast<int>(*options.threads));
    at::set_num_threads(static_cast<int>(*options.threads));
  }
  if (options.busy_cores == "off")
    end_busy_cores();
  else
    watch_busy_cores();
  at::globalContext().setDeterministicAlgorithms(options.deterministic, false);
  // Without it cuBLAS does not repeat, and torch refuses it; it is read when a GPU first
  // multiplies.
  if (options.deterministic) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);
}

void go_on(TrainOptions& options, int64_t step, int64_t updates, const DataSource& data) {
  options.decay_steps = options.decays_over(options.epoch_size(data));
  options.epochs.reset();
  options.steps = step + updates;
}

TrainOutcome train_further(const Experiment& experiment, std::shared_ptr<Model> model,
                           const DataSource& data, const Compute& compute, TrainingState& state,
                           const std::optional<NamedTensors>& moments, Recorder* recorder,
                           bool resumable, const SaveTraining& save) {
  require_trainable(experiment);
  return Trainer(experiment, std::move(model), data, compute, state, moments, recorder, resumable,
                 save)
      .run();
}

namespace {

TrainingState state_of(const std::optional<Checkpoint>& resumed, Model& model) {
  if (!resumed) return {};
  load_model(model, resumed->model);
  return TrainingState::of(*resumed);
}
std::optional<NamedTensors> moments_of(const std::optional<Checkpoint>& resumed) {
  return resumed ? resumed->optimizer : std::nullopt;
}

}  // namespace

TrainOutcome train(const Experiment& experiment, std::shared_ptr<Model> model,
                   const DataSource& data, const Compute& compute, RunDirectory& run,
                   const std::optional<Checkpoint>& resumed) {
  auto state = state_of(resumed, *model);
  if (resumed) warn_if_not_finite(run.path().string(), resumed->model);
  Recorder recorder(experiment, model, data, compute, run, state, resumed.has_value());
  auto outcome = train_further(experiment, model, data, compute, state, moments_of(resumed),
                               &recorder, /*resumable=*/true);
  outcome.status.metrics = recorder.close(state, outcome.status.state);
  return outcome;
}

TrainOutcome train_along(const Experiment& experiment, std::shared_ptr<Model> model,
                         const DataSource& data, const Compute& compute,
                         const std::optional<Checkpoint>& resumed) {
  auto state = state_of(resumed, *model);
  return train_further(experiment, std::move(model), data, compute, state, moments_of(resumed),
                       nullptr, /*resumable=*/true);
}

}  // namespace headlab
