#include "experiments/training/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/torch.h"
#include "experiments/files/json_text.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/text/file_text.h"
#include "experiments/training/lost_rows.h"

namespace headlab {
namespace {

RootAttributes root_attributes(const RunDirectory& run, const std::string& title) {
  const auto name = run.path().filename().string();
  const auto run_id = run.manifest().is_object() ? run.manifest().value("run_id", name) : name;
  return {.title = title,
          .run_id = run_id,
          .config_yaml = file_text(run.path() / "config.yaml"),
          .manifest_json = json_text(run.manifest()),
          .created_utc = utc_now()};
}

TrainingLog::File log_file(const RunDirectory& run, const std::string& title,
                           const TrainingState& start, bool resumed) {
  TrainingLog::File file{run.path() / "log.h5", root_attributes(run, title)};
  if (resumed) file.resumed = {start.step, start.wall_s};
  return file;
}

LogStatus log_status(RunState state) {
  if (state == RunState::kFinished) return LogStatus::kFinished;
  return state == RunState::kStopped ? LogStatus::kStopped : LogStatus::kFailed;
}

}  // namespace

Due due_after(const Experiment& experiment, int64_t step) {
  const auto at = [&](int64_t every) { return every > 0 && step % every == 0; };
  return {.row = at(experiment.log.every),
          .statistics = at(experiment.log.stats_every),
          .maps = at(experiment.log.attention.every),
          .evaluation = at(experiment.train.eval_every),
          .checkpoint = at(experiment.train.checkpoint.every)};
}

Recorder::Recorder(const Experiment& experiment, std::shared_ptr<Model> model,
                   const DataSource& data, const Compute& compute, RunDirectory& run,
                   const TrainingState& start, bool resumed)
    : experiment_(experiment),
      model_(std::move(model)),
      compute_(compute),
      run_(run),
      begins_log_(!resumed || start.step == 0),
      table_(training_metrics(experiment, *model_, data.task())),
      metrics_(run.path() / "metrics.jsonl", start.step),
      log_(log_file(run, experiment.name, start, resumed), experiment, *model_, data, table_),
      progress_(start.step, experiment.train.total_steps(data), experiment.log.every),
      retention_{.keep_last = experiment.train.checkpoint.keep_last,
                 .keep_best = experiment.train.checkpoint.keep_best,
                 .resumed_from = resumed ? std::optional(start.step) : std::nullopt},
      last_row_{start.wall_s, start.tokens},
      newest_(start.newest) {
  say_notices();
  if (!begins_log_ && made_by_run(run.manifest())) {
    const auto kept = read_metrics(run.path() / "metrics.jsonl");
    for (const auto& notice : restore_rows(start.step, table_, kept, metrics_, log_))
      progress_.say(notice);
  }
  if (!log_.absent().empty())
    progress_.say(fmt::format("log.h5 was begun without {}, and goes on without",
                              fmt::join(log_.absent(), ", ")));
}

void Recorder::first_rows(const TrainingState& now, Updater& updater, const MicroBatches& batches) {
  begins_log_ = false;
  const bool statistics = experiment_.log.stats_every > 0;
  const auto losses =
      updater.measure(now.step, batches, statistics ? &log_.fresh_probes() : nullptr);
  row_ = {.losses = TrainingRow::Losses::of(losses), .gates = gate_decisions(*model_)};
  log_.file().scalars(now.step, now.wall_s, now.tokens,
                      logged(table_, MetricGroup::kScalars, row_));
  if (statistics) log_.heads(now.step);
  write_maps(now.step);
  write_line(now);
}

SiteProbes* Recorder::before_update(int64_t step) {
  const auto due = due_after(experiment_, step);
  gates_ = due.row ? gate_decisions(*model_) : std::nullopt;
  return due.statistics ? &log_.fresh_probes() : nullptr;
}

void Recorder::after_update(const TrainingState& now, const Updater::Result& result, int64_t tokens,
                            std::optional<double> loss, bool finite, bool last_of_status) {
  progress_.step(now.step, tokens, loss);
  const auto due = due_after(experiment_, now.step);
  const bool has_row = due.row || !finite;
  if (has_row || last_of_status) {
    const double seconds = std::max(now.wall_s - last_row_.wall_s, 1e-9);
    const TrainingRow row{
        .losses = TrainingRow::Losses::of(result.losses),
        .update = {{.lr = result.lr,
                    .grad_norm = result.grad_norm.item<double>(),
                    .tokens_per_s = static_cast<double>(now.tokens - last_row_.tokens) / seconds}},
        .gates = gates_};
    note(row);
    if (has_row) row_ = row;
  }
  if (has_row) {
    log_.file().scalars(now.step, now.wall_s, now.tokens,
                        logged(table_, MetricGroup::kScalars, row_));
    last_row_ = {now.wall_s, now.tokens};
  }
  if (due.statistics) log_.heads(now.step);
}

void Recorder::measured(int64_t examples, int64_t of) { progress_.measured(examples, of); }

void Recorder::take(const TrainingState& now, const Evaluation& evaluation,
                    const std::optional<Evaluation>& test) {
  row_.evaluation = evaluation, row_.test = test;
  newest_["val/step"] = static_cast<double>(now.step);
}

void Recorder::evaluated(const TrainingState& now, const Evaluation& evaluation,
                         const std::optional<Evaluation>& test) {
  take(now, evaluation, test);
  log_.eval(now.step, logged(table_, MetricGroup::kEvals, row_));
  progress_.validation(evaluation.loss());
}

void Recorder::end_step(const TrainingState& now, bool end) {
  if (end || due_after(experiment_, now.step).maps) write_maps(now.step);
  write_line(now);
}

void Recorder::save(const TrainingState& now, const NamedTensors& optimizer, bool best) {
  metrics_.sync();
  log_.file().sync();
  auto state = now;
  state.newest = newest_;  // killed before status.json is written, they are not lost
  save_checkpoint(run_.path(), {now.step, module_tensors(*model_), optimizer, state.json()}, best,
                  retention_);
  run_.running(now.step, newest_);
}

const Metrics& Recorder::close(const TrainingState& now, RunState state) {
  write_line(now);
  log_.file().close(log_status(state));
  progress_.finish();
  return newest_;
}

void Recorder::write_maps(int64_t step) {
  log_.maps(step, compute_);
  say_notices();
}

void Recorder::write_line(const TrainingState& now) {
  const auto line = line_of(table_, row_);
  if (!line.empty()) metrics_.append({now.step, now.tokens, now.wall_s, line});
  note(row_);
  row_ = {};
}

// A process that was killed at it may have written one or both already.
void Recorder::evaluated_later(const TrainingState& now, const Evaluation& evaluation,
                               const std::optional<Evaluation>& test) {
  take(now, evaluation, test);
  log_.file().sync();
  const auto steps = log_.file().numbers("eval").at("step");
  if (steps.empty() || steps.back() < static_cast<double>(now.step))
    log_.eval(now.step, logged(table_, MetricGroup::kEvals, row_));
  auto rows = read_metrics(run_.path() / "metrics.jsonl");
  if (rows.empty() || rows.back().step < now.step) return write_line(now);
  rows.back().values.merge(line_of(table_, row_));
  metrics_.replace(rows);
  note(row_);
  row_ = {};
}

void Recorder::note(const TrainingRow& row) {
  for (const auto& [name, value] : line_of(table_, row)) newest_[name] = value;
}

void Recorder::say_notices() {
  for (const auto& notice : log_.file().take_notices()) progress_.say(notice);
}

}  // namespace headlab
