// `headlab run CONFIG`: trains what a config describes.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

struct RunOptions {
  std::string file, out = "runs", resume = "auto", device = "auto";
  std::vector<std::string> overrides;
  bool dry_run = false, json = false;
};

void print_outcome(const std::filesystem::path& path, const RunStatus& status, bool json) {
  if (json) {
    nlohmann::ordered_json object{{"run", path.string()},
                                  {"status", run_state_name(status.state)},
                                  {"reason", status.reason},
                                  {"step", status.step}};
    for (const auto& [name, value] : status.metrics) object[name] = metric_json(value);
    fmt::print("{}\n", object.dump());
    return;
  }
  fmt::print("{}\n{} at step {}{}", path.string(), run_state_name(status.state), status.step,
             status.reason.empty() ? "" : ": " + status.reason);
  const auto& m = status.metrics;
  if (m.count("val/loss")) {
    fmt::print(", val loss {:.4f} nat, accuracy {:.4f}", m.at("val/loss"), m.at("val/accuracy"));
    if (m.count("val/tokens")) fmt::print(" over {:.0f} tokens", m.at("val/tokens"));
  }
  fmt::print("\n");
}

bool names_checkpoint(const RunOptions& o) { return o.resume != "auto" && o.resume != "never"; }

// What --resume names, which must be of this run.
LocatedRun named_checkpoint(const RunOptions& o, const std::filesystem::path& run) {
  const auto located = locate_run(o.resume);
  std::error_code absent;
  if (!std::filesystem::equivalent(located.run, run, absent))
    throw ConfigError(fmt::format("--resume {}: is no checkpoint of this experiment, {}", o.resume,
                                  run.string()));
  return located;
}

// The checkpoint to go on from, as --resume says; none: from the start.
std::optional<Checkpoint> checkpoint_of(const RunOptions& o, const std::filesystem::path& run) {
  std::string warning;
  std::optional<Checkpoint> checkpoint;
  if (names_checkpoint(o))
    checkpoint = load_located(named_checkpoint(o, run), &warning);
  else
    checkpoint = load_latest(run, &warning);
  if (!warning.empty()) fmt::print(stderr, "headlab: {}\n", warning);
  if (checkpoint) rewind_checkpoints(run, checkpoint->step);
  return checkpoint;
}

int run(const RunOptions& o) {
  Experiment experiment;
  read_config(experiment, load_config(o.file, o.overrides));
  const auto device = pick_device(o.device);
  if (experiment.train.threads) at::set_num_threads(static_cast<int>(*experiment.train.threads));
  at::globalContext().setDeterministicAlgorithms(experiment.train.deterministic, false);

  const auto hash = config_hash(write_block(experiment, Paths::kWritten));
  const auto path =
      std::filesystem::absolute(run_path(o.out, experiment.name, hash, experiment.seed));
  const auto sight = look_at_run(path);
  if (sight.kind == RunSight::Kind::kRunning)
    throw RunError(fmt::format("{}: is being written by {}", path.string(), sight.holder));
  if (sight.kind == RunSight::Kind::kFinished && o.resume == "auto") {
    fmt::print(stderr, "headlab: this run is finished; '--resume never' trains it anew\n");
    print_outcome(path, *sight.status, o.json);
    return kDone;
  }

  if (names_checkpoint(o)) named_checkpoint(o, path);

  const auto data = open_data(experiment.data);  // before any directory is made
  auto model = build_model(experiment, *data, device);
  const auto announce = [&] {
    fmt::print(stderr, "headlab: {} parameters, {} threads, {}\n", parameter_count(*model),
               at::get_num_threads(), path.string());
  };
  if (o.dry_run) {
    announce();
    return kDone;
  }

  const auto manifest = manifest_of(experiment, *data, device);
  std::optional<Checkpoint> checkpoint;
  auto directory = [&] {
    const auto yaml = to_yaml(write_block(experiment));
    if (sight.kind == RunSight::Kind::kAbsent) return RunDirectory::create(path, yaml, manifest);
    if (o.resume == "never") return RunDirectory::replace(path, yaml, manifest);
    checkpoint = checkpoint_of(o, path);
    if (!checkpoint) return RunDirectory::replace(path, yaml, manifest);
    fmt::print(stderr, "headlab: goes on from step {}\n", checkpoint->step);
    return RunDirectory::resume(path, manifest);
  }();
  announce();
  try {
    const auto outcome = train(experiment, model, *data, device, directory, checkpoint);
    directory.end(outcome.status);
    print_outcome(path, outcome.status, o.json);
    return outcome.exit_code;
  } catch (const std::exception& e) {
    directory.end({.state = RunState::kFailed, .reason = e.what()});
    throw;
  }
}

const RegisterCommand run_command({
    .name = "run",
    .summary = "train what a config describes; goes on where an earlier run stopped",
    .example = "headlab run configs/char_mha.yaml train.steps=500 model.layers=2",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<RunOptions>();
          a.option("config", o->file, "YAML file", Arguments::kRequired);
          a.option("overrides", o->overrides, "a.b=value ...");
          a.option("--resume", o->resume, "auto, never, or a checkpoint of this run");
          a.option("--out", o->out, "directory of runs");
          a.option("--device", o->device, "auto, cpu, cuda or cuda:N");
          a.flag("--dry-run", o->dry_run, "check everything, train nothing");
          a.flag("--json", o->json, "print one JSON object at the end");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
