#include "experiments/conversion/converted_run.h"

#include "core/torch.h"
#include "experiments/system/exit_codes.h"
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

// Goes on with the run that write_run() left: exit code of the training.
int tune(const std::filesystem::path& out, const ConvertedModel& converted, const DataSource& data,
         const nlohmann::ordered_json& manifest, const Compute& compute) {
  use_settings(converted.experiment.train);
  const auto located = locate_run(out);
  auto directory = RunDirectory::resume(located.run, WriterLock(located.run), manifest);
  try {
    const auto outcome = train(converted.experiment, converted.model, data, compute, directory,
                               load_located(located));
    directory.end(outcome.status);
    return outcome.exit_code;
  } catch (const std::exception& e) {
    directory.fail(e.what());
    throw;
  }
}

}  // namespace

int keep_converted(const std::filesystem::path& out, const OpenedRun& run,
                   ConvertedModel& converted, const ConversionCost& cost,
                   const FurtherTraining& further, const Compute& compute,
                   nlohmann::ordered_json& report) {
  auto& experiment = converted.experiment;
  const auto write = [&](std::optional<double> loss, const Metrics& metrics) {
    auto manifest = manifest_of(run, experiment, *converted.model, compute.device);
    manifest["converted"] = report;
    write_run(out, experiment, run.data_description,
              untrained_checkpoint(*converted.model, run.step, loss), manifest, metrics);
    return manifest;
  };
  if (!cost.measured) {
    write(std::nullopt, {});
    return kDone;
  }
  if (further.updates > 0) set_further(experiment.train, run.step, further, *run.data);
  const auto& settings = run.experiment.train;
  const auto parts = evaluate_parts(*converted.model, *run.data, run.data->evaluated(),
                                    settings.eval_batch, {settings.eval_batches, 0}, compute);
  const auto &judged = parts.front(), &whole = parts.back();
  if (cost.after.batches > 0) {
    auto& kept = report["on_whole_split"] = measured_json(whole);
    kept["measured"] = measured_text(whole);
    for (const auto& mean : whole.means) kept[mean.name] = mean.value;
  }
  const auto manifest = write(judged.validation_loss(), status_metrics(whole));
  if (further.updates == 0) return kDone;
  const int code = tune(out, converted, *run.data, manifest, compute);
  report["tuned"] = further.updates;
  report["loss_tuned"] = evaluate(*converted.model, *run.data, run.data->evaluated(),
                                  run.experiment.train.eval_batch, cost.most_batches, compute)
                             .loss();
  return code;
}

}  // namespace headlab
