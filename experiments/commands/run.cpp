// `headlab run CONFIG`: trains what a config describes.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/commands/report.h"
#include "experiments/runs/begin_run.h"
#include "experiments/runs/open_run.h"
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
    a.option("--resume", resume, "auto, never, or a checkpoint of this run");
    a.option("--out", out, "directory of runs");
    a.option("--device", device, "auto, cpu, cuda or cuda:N");
    a.flag("--dry-run", dry_run, "check everything, train nothing");
    a.flag("--json", json, "print one JSON object at the end");
  }
};

// The task's metrics, the loss first; "" where nothing was evaluated.
std::string validation_text(const Metrics& metrics) {
  const std::string val = "val/";
  const auto loss = metrics.find(val + "loss"), tokens = metrics.find(val + "tokens");
  if (loss == metrics.end()) return "";
  auto text = fmt::format(", val loss {:.4f} nat", loss->second);
  for (auto metric = metrics.lower_bound(val);
       metric != metrics.end() && metric->first.starts_with(val); ++metric)
    if (metric != loss && metric != tokens)
      text += fmt::format(", {} {:.4f}", metric->first.substr(val.size()), metric->second);
  if (tokens != metrics.end()) text += fmt::format(" over {:.0f} tokens", tokens->second);
  return text;
}

int print_outcome(const std::filesystem::path& path, const RunStatus& status, bool json) {
  nlohmann::ordered_json object{{"run", path.string()},
                                {"status", run_state_name(status.state)},
                                {"reason", status.reason},
                                {"step", status.step}};
  for (const auto& [name, value] : status.metrics) object[name] = metric_json(value);
  auto text = fmt::format("{}\n{} at step {}{}", path.string(), run_state_name(status.state),
                          status.step, status.reason.empty() ? "" : ": " + status.reason);
  text += validation_text(status.metrics);
  return print({.object = object, .text = text + "\n"}, json);
}

int print_finished(const std::filesystem::path& path, const RunStatus& status, bool json) {
  fmt::print(stderr, "headlab: this run is finished; '--resume never' trains it anew\n");
  return print_outcome(path, status, json);
}

int run_run(const RunOptions& o) {
  Experiment experiment;
  read_config(experiment, load_config(o.file, o.overrides));
  const auto device = pick_device(o.device);
  use_settings(experiment.train);

  const auto hash = config_hash(write_block(experiment, Paths::kWritten));
  const auto path =
      std::filesystem::absolute(run_path(o.out, experiment.name, hash, experiment.seed));
  const auto from = ResumeFrom::parse(o.resume);
  if (const auto status = already_finished(path, from))
    return print_finished(path, *status, o.json);

  const auto data = open_training_data(experiment);  // before any directory is made
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

  auto manifest = manifest_of(experiment, *data, device);
  manifest["parameters"] = parameters_json(*model, experiment.train);
  auto begun = begin_run(path, to_yaml(write_block(experiment)), manifest,
                         data_text(describe_data(*data)), from);
  if (!begun.warning.empty()) fmt::print(stderr, "headlab: {}\n", begun.warning);
  if (!begun.directory) return print_finished(path, *already_finished(path, from), o.json);
  if (begun.checkpoint)
    fmt::print(stderr, "headlab: goes on from step {}\n", begun.checkpoint->step);
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
     .example = "headlab run configs/char_mha.yaml train.steps=500 model.layers=2"},
    run_run);

}  // namespace
}  // namespace headlab
