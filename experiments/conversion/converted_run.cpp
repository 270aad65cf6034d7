#include "experiments/conversion/converted_run.h"

#include "core/config/config.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/config_file.h"
#include "experiments/runs/begin_run.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/output.h"
#include "experiments/system/signals.h"
#include "experiments/training/train.h"
#include "experiments/training/training_metrics.h"

namespace headlab {
namespace {

void set_further(TrainOptions& options, int64_t step, const FurtherTraining& further,
                 const DataSource& data) {
  go_on(options, step, further.updates, data);
  options.gates_only = further.gates_only;
  if (further.to_fewer_heads) options.early_stop.patience = 0;
}

// From `checkpoint` to the end. `directory` has the report in its manifest.
KeptConversion tune(RunDirectory& directory, Experiment& experiment,
                    const std::shared_ptr<Model>& model, const DataSource& data,
                    const Checkpoint& checkpoint, const FurtherTraining& further,
                    const Compute& compute, nlohmann::ordered_json report) {
  try {
    auto outcome = train(experiment, model, data, compute, directory, checkpoint);
    if (outcome.status.state == RunState::kFinished) {
      report["tuned"] = further.updates;
      const Sample sample{&data, data.evaluated(), experiment.train.eval_batch,
                          further.most_batches};
      report["loss_tuned"] = evaluate(*model, sample, compute).loss();
      directory.note("converted", report);
    }
    directory.end(outcome.status);
    return {report, model, outcome.status, outcome.exit_code};
  } catch (const std::exception& e) {
    directory.fail(e.what());
    throw;
  }
}

// The run of `experiment` at `out`, which is made, or taken from a process that has ended before
// its first checkpoint. `manifest` has what was asked for.
BegunRun begin(const std::filesystem::path& out, Experiment& experiment,
               const DataDescription& description, const nlohmann::ordered_json& manifest) {
  auto begun = begin_run(out, to_yaml(write_block(experiment)), manifest, data_text(description),
                         {}, [&] { require_same_tuning(out, experiment, manifest); });
  if (!begun.directory)
    throw RunError(out.string() + ": another process has finished it meanwhile");
  if (!begun.warning.empty()) tell("{}", begun.warning);
  return begun;
}

}  // namespace

std::optional<KeptConversion> go_on_converted(const std::filesystem::path& out,
                                              const OpenedRun& run, const FurtherTraining& further,
                                              const Compute& compute) {
  if (find_run(out).kind == FoundRun::Kind::kAbsent) return std::nullopt;
  const auto finished = already_finished(out, {});
  Experiment expected = run.experiment;
  set_further(expected.train, run.step, further, *run.data);
  auto manifest = process_manifest(expected, data_json(run.data->files()), compute.device);
  manifest["tuning"] = further.asked;
  try {
    Experiment kept;
    read_config(kept, load_config(out / "config.yaml"));
    expected.model = kept.model;  // of the same weights by the same options
  } catch (const ConfigError&) {  // which the comparison names
  }
  require_same_tuning(out, expected, manifest);
  if (!finished && !load_latest(out)) return std::nullopt;
  auto opened = open_run(out, compute.device);
  const auto report = with_numbers(opened.manifest.value("converted", nlohmann::ordered_json()));
  if (finished) {
    tell("this run is finished; another --out makes it anew");
    return KeptConversion{report, opened.model, *finished, kDone};
  }
  use_settings(expected.train);
  manifest = manifest_of(run, expected, *opened.model, compute.device);
  manifest["tuning"] = further.asked;
  manifest["converted"] = report;
  const auto since = changed_since(out, manifest);
  auto begun = begin(out, expected, run.data_description, manifest);
  if (!begun.checkpoint) return std::nullopt;
  tell("goes on from step {}", begun.checkpoint->step);
  for (const auto& told : since) tell("since it began: {}", told);
  return tune(*begun.directory, expected, opened.model, *run.data, *begun.checkpoint, further,
              compute, report);
}

KeptConversion keep_converted(const std::filesystem::path& out, const OpenedRun& run,
                              ConvertedModel& converted, const ConversionCost& cost,
                              const FurtherTraining& further, const Compute& compute,
                              nlohmann::ordered_json report) {
  auto& experiment = converted.experiment;
  const auto manifest = [&] {
    auto made = manifest_of(run, experiment, *converted.model, compute.device);
    if (further.updates > 0) made["tuning"] = further.asked;
    made["converted"] = report;
    return made;
  };
  const auto write = [&](std::optional<double> loss, const Metrics& metrics) {
    write_run(out, experiment, run.data_description,
              untrained_checkpoint(*converted.model, run.step, loss), manifest(), metrics);
    return KeptConversion{report, converted.model, {RunState::kFinished, "", run.step, metrics}};
  };
  if (!cost.measured) return write(std::nullopt, {});
  if (further.updates > 0) set_further(experiment.train, run.step, further, *run.data);
  const auto& settings = run.experiment.train;
  const auto parts =
      evaluate_parts(*converted.model, {run.data.get(), run.data->evaluated(), settings.eval_batch},
                     {settings.eval_batches, 0}, compute);
  const auto &judged = parts.front(), &whole = parts.back();
  if (cost.after.batches > 0) {
    auto& kept = report["on_whole_split"] = measured_json(whole);
    kept["measured"] = measured_text(whole);
    for (const auto& mean : whole.means) kept[mean.name] = mean.value;
  }
  if (further.updates == 0)
    return write(judged.validation_loss(), status_metrics(whole, run.data->task()));
  if (const int signal = StopSignals::received(); signal != 0)
    return {report,
            nullptr,
            {RunState::kStopped, signal_text(signal), run.step},
            StopSignals::exit_code(signal)};
  use_settings(experiment.train);
  auto begun = begin(out, experiment, run.data_description, manifest());
  save_checkpoint(out, untrained_checkpoint(*converted.model, run.step, judged.validation_loss()),
                  /*best=*/true);
  begun.directory->running(run.step, status_metrics(whole, run.data->task()));
  return tune(*begun.directory, experiment, converted.model, *run.data,
              load_located(locate_run(out)), further, compute, report);
}

}  // namespace headlab
