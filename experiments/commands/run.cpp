// `headlab run CONFIG`: trains what a config describes.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/commands/run_outcome.h"
#include "experiments/runs/begin_run.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/training/leak_check.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

struct RunOptions {
  std::string file, out = "runs", resume = "auto", device = "auto";
  std::vector<std::string> overrides;
  bool dry_run = false, json = false;

  void visit(Arguments& a) {
    a.option("config", file, "YAML file", Arguments::kRequired);
    a.option("overrides", overrides, "a.b=value ...");
    a.option("--resume", resume, "auto, never, or a run of these settings, or a checkpoint in it");
    a.option("--out", out, "directory of runs");
    a.option("--device", device, "auto, cpu, cuda or cuda:N");
    a.flag("--dry-run", dry_run, "check everything, train nothing");
    a.flag("--json", json, "print one JSON object at the end");
  }
};

int print_finished(const std::filesystem::path& path, const RunStatus& status, bool json) {
  fmt::print(stderr, "headlab: this run is finished; '--resume never' trains it anew\n");
  return print_outcome(path, status, json, code_since(path));
}

int run_run(const RunOptions& o) {
  Experiment experiment;
  read_config(experiment, load_experiment(o.file, o.overrides));
  const auto device = pick_device(o.device);
  use_settings(experiment.train);

  const auto from = ResumeFrom::parse(o.resume);
  const auto path = from.named.empty() ? run_path(o.out, experiment) : locate_run(from.named).run;
  const auto data = open_training_data(experiment);  // before any directory is made
  const auto data_files = data_json(data->files(), kept_data(path));
  const auto check = [&] { require_same_run(path, experiment, data_files, from); };
  const auto finished = already_finished(path, from);
  check();
  if (finished) return print_finished(path, *finished, o.json);

  auto model = build_model(experiment, data->shape(), device);
  check_leaks(*model, experiment.model.as<ModelOptions>(), data->shape(), {device});
  const auto announce = [&] {
    fmt::print(stderr, "headlab: {} parameters, {} threads, {}\n", parameter_count(*model),
               at::get_num_threads(), path.string());
  };
  if (o.dry_run) {
    announce();
    return kDone;
  }

  const auto since = code_since(path);
  auto begun = begin_run(path, to_yaml(write_block(experiment)),
                         manifest_of(experiment, *model, data_files, device),
                         data_text(describe_data(*data)), from, check);
  if (!begun.warning.empty()) fmt::print(stderr, "headlab: {}\n", begun.warning);
  if (!begun.directory) return print_finished(path, *already_finished(path, from), o.json);
  keep_patch(path);
  if (begun.checkpoint) {
    fmt::print(stderr, "headlab: goes on from step {}\n", begun.checkpoint->step);
    if (!since.empty()) fmt::print(stderr, "headlab: since it began: {}\n", since);
  }
  announce();
  try {
    const auto outcome =
        train(experiment, model, *data, {device}, *begun.directory, begun.checkpoint);
    begun.directory->end(outcome.status);
    print_outcome(path, outcome.status, o.json);
    return outcome.exit_code;
  } catch (const std::exception& e) {
    begun.directory->fail(e.what());
    throw;
  }
}

const RegisterCommand run_command(
    {.name = "run",
     .summary = "train what a config describes; goes on where an earlier run stopped",
     .example = "headlab run configs/char_mha.yaml train.steps=500 model.layers=2",
     .group = Group::kTrain},
    run_run);

}  // namespace
}  // namespace headlab
