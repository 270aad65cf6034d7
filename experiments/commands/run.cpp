// `headlab run CONFIG`: trains what a config describes.
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/commands/run_outcome.h"
#include "experiments/data/references.h"
#include "experiments/files/json_text.h"
#include "experiments/inference/leak_check.h"
#include "experiments/runs/begin_run.h"
#include "experiments/runs/initial_weights.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_identity.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

struct RunOptions {
  std::string file, out = "runs", resume = "auto", device = "auto";
  std::vector<std::string> overrides;
  std::optional<std::string> init;
  bool dry_run = false, json = false;

  void visit(Arguments& a) {
    a.option("config", file, "YAML file", Arguments::kRequired);
    a.option("overrides", overrides, "a.b=value ...");
    a.option("--resume", resume, "auto, never, or a run of these settings, or a checkpoint in it");
    a.option("--init", init, "a run whose weights training begins with: init=RUN");
    a.option("--out", out, "directory of runs");
    a.option("--device", device, "auto, cpu, cuda or cuda:N");
    a.flag("--dry-run", dry_run, "check everything, train nothing");
    a.flag("--json", json, "print one JSON object at the end");
  }
};

// The config with its overrides; what `@` means stands in its place.
Experiment experiment_of(const RunOptions& o) {
  auto overrides = o.overrides;
  if (o.init) overrides.push_back("init=" + json_text(nlohmann::json(*o.init)));
  Experiment experiment;
  read_config(experiment, load_experiment(o.file, overrides));
  resolve_init(experiment);
  return experiment;
}

ResumeFrom resume_from(const RunOptions& o) {
  auto from = ResumeFrom::parse(o.resume);
  if (!from.named.empty()) from.named = take_run(from.named);
  return from;
}

int run_run(const RunOptions& o) {
  auto experiment = experiment_of(o);
  const auto device = pick_device(o.device);
  use_settings(experiment.train);

  const auto from = resume_from(o);
  const auto path = from.named.empty() ? run_path(o.out, experiment) : locate_run(from.named).run;
  const auto data = open_training_data(experiment);  // before any directory is made
  const auto description = describe_data(*data);
  const auto initial = InitialWeights::of(experiment, path);
  auto files = data->files();
  if (initial) files.push_back(initial->file());
  const auto data_files = data_json(files, kept_data(path));

  const auto process = process_manifest(experiment, data_files, device);
  const auto check = [&] { require_same_run(path, experiment, process, from); };
  const auto finished = already_finished(path, from);
  check();
  if (finished) return print_finished(path, *finished, o.json);

  auto model = build_trained_model(experiment, data->shape(), device);
  if (initial) initial->put_into(*model, description);
  check_leaks(*model, experiment.model.as<ModelOptions>(), data->shape(), {device});
  const auto announce = [&] { say_what_begins(o.file, experiment, *model, *data, device, path); };
  if (const auto other = same_on_other_data(path, experiment, data_files); !other.empty())
    tell("{}", other);
  if (o.dry_run) {
    announce();
    return kDone;
  }
  if (const auto code = code_of_early_stop()) return *code;

  const auto since = changed_since(path, process);
  auto manifest = manifest_of(experiment, *model, data_files, device);
  manifest["config_hash"] = run_hash(experiment);
  manifest["steps"] = experiment.train.total_steps(*data);
  if (initial) manifest["parent"] = initial->parent_json();
  if (references_are_quick(*data, Split::kValidation))
    manifest["references"] = references_json(references_of(*data, Split::kValidation));
  auto begun = begin_run(path, to_yaml(write_block(experiment)), manifest, data_text(description),
                         from, check);
  if (!begun.warning.empty()) tell("{}", begun.warning);
  if (!begun.directory) return print_finished(path, *already_finished(path, from), o.json);

  try {
    keep_patch(path);
    if (begun.checkpoint) {
      tell("goes on from step {}", begun.checkpoint->step);
      for (const auto& told : since) tell("since it began: {}", told);
      if (initial) model = build_model(experiment, data->shape(), device);  // its weights follow
    } else if (initial) {
      tell("begins with the weights of {}", initial->text());
    }
    announce();
    const auto outcome =
        train(experiment, model, *data, {device}, *begun.directory, begun.checkpoint);
    begun.directory->end(outcome.status);
    print_outcome(path, outcome.status, o.json);
    say_what_comes_next(path, experiment, outcome.status, *model, description);
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
     .group = Group::kTrain,
     .asks_for_signals = true},
    run_run);

}  // namespace
}  // namespace headlab
