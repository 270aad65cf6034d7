// `headlab run CONFIG`: trains what a config describes.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "core/errors.h"
#include "core/head_kinds.h"
#include "experiments/commands/command.h"
#include "experiments/commands/on_ranks.h"
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
#include "experiments/runs/run_machine.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/host_name.h"
#include "experiments/system/output.h"
#include "experiments/system/own_files.h"
#include "experiments/training/rank_weights.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

struct RunOptions {
  std::string file, out = "runs", resume = "auto", device = "auto";
  std::vector<std::string> overrides;
  std::optional<std::string> init;
  bool allow_device_change = false, dry_run = false, json = false;
  int comm_timeout = kCommTimeout;

  void visit(Arguments& a) {
    a.option("config", file, "YAML file, or the name of one of headlab's own, char_mha",
             Arguments::kRequired);
    a.option("overrides", overrides, "a.b=value ...");
    a.option("--resume", resume, "auto, never, or a run of these settings, or a checkpoint in it");
    a.option("--init", init, "a run whose weights training begins with: init=RUN");
    a.option("--out", out, "directory of runs");
    a.option("--device", device, "auto, cpu, cuda or cuda:N");
    a.flag("--allow-device-change", allow_device_change,
           "go on with a run that was computed on another type of device, or in another precision");
    a.option("--comm-timeout", comm_timeout, kCommTimeoutHelp, Arguments::kAboveZero);
    a.flag("--dry-run", dry_run, "check everything, train nothing");
    a.flag("--json", json, "print one JSON object at the end");
  }
};

// The config with its overrides; what `@` means stands in its place.
Experiment experiment_of(const RunOptions& o) {
  auto overrides = o.overrides;
  if (o.init) overrides.push_back("init=" + json_text(nlohmann::json(*o.init)));
  Experiment experiment;
  read_config(experiment, load_experiment(named_config(o.file), overrides));
  resolve_init(experiment);
  return experiment;
}

ResumeFrom resume_from(const RunOptions& o) {
  auto from = ResumeFrom::parse(o.resume);
  if (!from.named.empty()) from.named = take_run(from.named);
  from.any_device = o.allow_device_change;
  return from;
}

// What a process knows of the run before anybody looks at its directory.
struct Prepared {
  Experiment experiment;
  at::Device device = at::kCPU;
  ResumeFrom from = {};
  std::filesystem::path path = {};
  std::shared_ptr<DataSource> data = {};
  DataDescription description = {};
  std::optional<InitialWeights> initial = {};
  nlohmann::ordered_json data_files = {}, ranks = {};
};

Prepared prepare(const RunOptions& o, Experiment experiment, const at::Device& device) {
  Prepared p{.experiment = std::move(experiment), .device = device, .from = resume_from(o)};
  p.path = p.from.named.empty() ? run_path(o.out, p.experiment) : locate_run(p.from.named).run;
  p.data = open_training_data(p.experiment);  // before any directory is made
  p.description = describe_data(*p.data);
  p.initial = InitialWeights::of(p.experiment, p.path);
  auto files = p.data->files();
  if (p.initial) files.push_back(p.initial->file());
  p.data_files = data_json(files, kept_data(p.path));
  return p;
}

std::shared_ptr<Model> model_of(const Prepared& p) {
  auto model = build_trained_model(p.experiment, p.data->shape(), p.device);
  if (p.initial) p.initial->put_into(*model, p.description);
  check_leaks(*model, p.experiment.model.as<ModelOptions>(), p.data->shape(), {p.device});
  return model;
}

// What the ranks must have alike, and what the manifest says of each.
void compare_ranks(Prepared& p, Comm& comm) {
  if (comm.size() == 1) return;
  require_same(comm, "the config", to_yaml(write_block(p.experiment)));
  std::string data;
  for (const auto& file : p.data_files) data += file.value("sha256", "") + "\n";
  require_same(comm, "the data", data);
  const auto kinds = head_names();
  require_same(comm, "the version of headlab", code_json({kinds.begin(), kinds.end()}).dump());
  const nlohmann::json own{
      {"host", host_name()}, {"device", p.device.str()}, {"threads", at::get_num_threads()}};
  for (const auto& text : comm.gather(own.dump()))
    p.ranks.push_back(nlohmann::ordered_json::parse(text));
}

// "": as many as trained it before.
std::string other_processes(const nlohmann::ordered_json& before, int now) {
  const auto then = before.is_object() && before.contains("ranks") ? before["ranks"].size() : 1;
  if (then == static_cast<size_t>(now)) return "";
  return fmt::format("it was trained by {} process{}, and is by {}", then, then == 1 ? "" : "es",
                     now);
}

// torchrun starts all processes anew where one has ended: after an error that every attempt would
// meet, the first of them ends at once. None: it goes on.
std::optional<int> code_of_hopeless_restart(const std::filesystem::path& path, int restarts) {
  if (restarts == 0) return std::nullopt;
  const auto status = read_status(path);
  if (!status || (status->state != RunState::kDiverged && status->state != RunState::kFailed))
    return std::nullopt;
  tell("started again after '{}': {}", run_state_name(status->state), status->reason);
  return status->state == RunState::kDiverged ? kDiverged : kInternal;
}

// What the manifest of this session says.
nlohmann::ordered_json manifest_of(const Prepared& p, Model& model,
                                   const nlohmann::ordered_json& process) {
  auto manifest = manifest_of(p.experiment, model, p.data_files, p.device);
  manifest["config_hash"] = run_hash(p.experiment);
  manifest["steps"] = p.experiment.train.total_steps(*p.data);
  if (const auto other = device_that_differs(read_manifest(p.path), process, p.experiment.train);
      !other.empty() && !p.from.never)
    manifest["device_change"] = other;
  if (!p.ranks.empty()) manifest["ranks"] = p.ranks;
  if (p.initial) manifest["parent"] = p.initial->parent_json();
  if (references_are_quick(*p.data, Split::kValidation))
    manifest["references"] = references_json(references_of(*p.data, Split::kValidation));
  return manifest;
}

// A run that others can go on with, whichever of its ranks has ended it.
void end_of_lost(RunDirectory& run, const LostRank& lost) {
  if (lost.code() != kResumable) {
    run.fail(lost.what());
    return;
  }
  auto status = read_status(run.path()).value_or(RunStatus{});
  status.state = RunState::kStopped, status.reason = lost.what();
  run.end(status);
}

// Rank 0, and the process that is alone: decides, locks, writes. What it decides it tells the
// others: the code to end with, or that the training begins.
int lead(const RunOptions& o, Prepared& p, Comm& comm, int restarts) {
  const auto ends_with = [&](int code) {
    comm.broadcast(nlohmann::json{{"code", code}}.dump());
    return code;
  };
  const auto process = process_manifest(p.experiment, p.data_files, p.device);
  const auto check = [&] { require_same_run(p.path, p.experiment, process, p.from); };
  const auto finished = already_finished(p.path, p.from);
  check();
  if (finished) return ends_with(print_finished(p.path, *finished, o.json));
  if (const auto code = code_of_hopeless_restart(p.path, restarts)) return ends_with(*code);

  auto model = model_of(p);
  const auto announce = [&] {
    say_what_begins(o.file, p.experiment, *model, *p.data, p.device, p.path);
    if (comm.size() > 1) tell("on {} processes", comm.size());
  };
  if (const auto other = same_on_other_data(p.path, p.experiment, p.data_files); !other.empty())
    tell("{}", other);
  if (o.dry_run) {
    announce();
    return ends_with(kDone);
  }
  if (const auto code = code_of_early_stop()) return ends_with(*code);

  auto since = changed_since(p.path, process);
  if (const auto other = other_processes(read_manifest(p.path), comm.size()); !other.empty())
    since.push_back(other);
  auto begun = begin_run(p.path, to_yaml(write_block(p.experiment)),
                         manifest_of(p, *model, process), data_text(p.description), p.from, check);
  if (!begun.warning.empty()) tell("{}", begun.warning);
  if (!begun.directory)
    return ends_with(print_finished(p.path, *already_finished(p.path, p.from), o.json));

  try {
    keep_patch(p.path);
    if (begun.checkpoint) {
      tell("goes on from step {}", begun.checkpoint->step);
      for (const auto& told : since) tell("since it began: {}", told);
      if (p.initial)  // its weights follow
        model = build_model(p.experiment, p.data->shape(), p.device);
    } else if (p.initial) {
      tell("begins with the weights of {}", p.initial->text());
    }
    announce();
    comm.broadcast("{}");
    const auto checkpoint = share_checkpoint(std::move(begun.checkpoint), comm);
    const auto outcome = train(p.experiment, model, *p.data, {.device = p.device, .comm = &comm},
                               *begun.directory, checkpoint);
    begun.directory->end(outcome.status);
    print_outcome(p.path, outcome.status, o.json);
    say_what_comes_next(p.path, p.experiment, outcome.status, *model, p.description);
    return outcome.exit_code;
  } catch (const LostRank& lost) {
    end_of_lost(*begun.directory, lost);
    throw;
  } catch (const std::exception& e) {
    begun.directory->fail(e.what());
    throw;
  }
}

// Every other rank: trains along, and writes nothing.
int follow(const Prepared& p, Comm& comm) {
  auto model = model_of(p);
  const auto decided = nlohmann::json::parse(comm.broadcast(""));
  if (decided.contains("code")) return decided.at("code");
  const auto checkpoint = share_checkpoint(std::nullopt, comm);
  if (checkpoint && p.initial) model = build_model(p.experiment, p.data->shape(), p.device);
  return train_along(p.experiment, model, *p.data, {.device = p.device, .comm = &comm}, checkpoint)
      .exit_code;
}

int run_run(const RunOptions& o) {
  const auto launch = launched();
  auto experiment = experiment_of(o);
  const auto device = pick_device(o.device, launch);
  use_settings(experiment.train);
  experiment.train.require_parts(launch.size);
  const CommSettings settings{.timeout = std::chrono::seconds(o.comm_timeout),
                              .device = device,
                              .fast_sum = experiment.train.fast_sum};
  return on_ranks(launch, settings, [&](const Ranks& ranks) {
    auto prepared = prepare(o, experiment, device);
    compare_ranks(prepared, ranks.comm);
    return ranks.comm.first() ? lead(o, prepared, ranks.comm, launch.restarts)
                              : follow(prepared, ranks.comm);
  });
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
