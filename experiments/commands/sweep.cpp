// `headlab sweep SWEEP.yaml`: trains every point of a grid, and says what they ended with.
#include <fmt/format.h>

#include <vector>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/sweep_report.h"
#include "experiments/sweeps/sweep_jobs.h"
#include "experiments/sweeps/sweep_points.h"
#include "experiments/sweeps/sweep_run.h"
#include "experiments/sweeps/sweep_summary.h"
#include "experiments/sweeps/sweep_table.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

struct SweepOptions {
  std::string file, out = "runs", emit, time;
  std::vector<std::string> overrides;
  int64_t jobs = 0, ranks = 1, cpus_per_task = 0, gpus_per_task = 0;
  bool keep_going = false, fail_fast = false, dry_run = false, json = false;

  void visit(Arguments& a) {
    a.option("sweep", file, "YAML file with base, grid, zip and exclude", Arguments::kRequired);
    a.option("overrides", overrides, "a.b=value ..., of every point");
    a.option("--out", out, "directory of runs");
    a.option("--jobs", jobs, kJobsHelp, Arguments::kAboveZero);
    a.option("--ranks", ranks, kRanksHelp, Arguments::kAboveZero);
    a.flag("--keep-going", keep_going, "train the other points when one fails, as is usual");
    a.flag("--fail-fast", fail_fast, "stop when a point fails");
    a.flag("--dry-run", dry_run,
           "points, FLOPs, bytes and hours, from a short start of each config");
    a.choice("--emit", emit, "write jobs for others to run, and train nothing",
             {"slurm", "joblist"});
    a.option("--time", time, "limit of a job of --emit slurm, HH:MM:SS");
    a.option("--cpus-per-task", cpus_per_task,
             "cores of a job of --emit slurm (default: threads of a training, else 1)",
             Arguments::kAboveZero);
    a.option("--gpus-per-task", gpus_per_task, "GPUs of a job of --emit slurm",
             Arguments::kZeroOrMore);
    a.flag("--json", json, "print one JSON object at the end");
  }

  void check() const {
    if (keep_going && fail_fast)
      throw ConfigError("--keep-going and --fail-fast exclude each other");
    if (dry_run && !emit.empty()) throw ConfigError("--dry-run and --emit exclude each other");
    if (emit == "slurm" && time.empty())
      throw ConfigError("--emit slurm: needs --time HH:MM:SS, the limit of a job");
    if (emit != "slurm")
      for (const auto& [name, given] :
           {std::pair("--time", !time.empty()), std::pair("--cpus-per-task", cpus_per_task > 0),
            std::pair("--gpus-per-task", gpus_per_task > 0)})
        if (given) throw ConfigError(fmt::format("{}: goes with --emit slurm only", name));
    if (ranks > 1 && !emit.empty())
      throw ConfigError("--ranks: starts processes on this machine, and --emit starts none");
    if (gpus_per_task > 1)
      throw ConfigError(
          "--gpus-per-task: a training computes on one GPU; --ranks trains on several");
    if (!time.empty() && !is_time_limit(time))
      throw ConfigError(fmt::format("--time {:.40}: must be HH:MM:SS", time));
  }
};

int emit_jobs(const SweepOptions& o, const FrozenSweep& sweep) {
  const auto threads = threads_of(sweep, o.jobs);
  const bool slurm = o.emit == "slurm";
  // The cores here are not those of the nodes that Slurm will choose.
  const int64_t own = threads.set ? threads.of_a_run : 1;
  JobOrders orders{
      .program = copy_of_this_program(sweep.folder).string(),
      .at_once = threads.jobs,
      .threads = slurm ? (o.cpus_per_task > 0 ? o.cpus_per_task : own) : threads.of_a_run,
      .gpus = o.gpus_per_task,
      .time = o.time,
      .sets_threads = !threads.set};
  const auto commands =
      slurm ? write_slurm_scripts(sweep, orders) : std::vector{write_job_list(sweep, orders)};
  tell("{} points, {} threads each; {}", sweep.points.size(), orders.threads,
       slurm ? "these commands submit them" : "this command runs them, again and again");
  return print({.object = {{"sweep", sweep.folder.string()}, {"commands", commands}},
                .text = fmt::format("{}\n", fmt::join(commands, "\n"))},
               o.json);
}

int train_points(const SweepOptions& o, const FrozenSweep& sweep, const SweepOrders& orders) {
  tell("{} points, {} at once", sweep.points.size(), orders.jobs);
  tell("{}", sweep.folder.string());
  const auto [points, code] = run_shown(sweep, orders);
  const auto summary = summary_of(sweep, points);
  write_summary(sweep, summary);
  print({.object = summary_json(sweep, summary), .text = summary_text(summary)}, o.json);
  if (code == kResumable) tell("not all points are finished; the same command goes on");
  return code;
}

int run_sweep(const SweepOptions& o) {
  o.check();
  const auto sweep = resolve_sweep(o.file, o.overrides, o.out);
  if (!o.emit.empty()) {
    write_sweep(sweep, o.file);
    return emit_jobs(o, sweep);
  }
  auto orders = orders_here(sweep, o.jobs, o.ranks, "auto");
  orders.fail_fast = o.fail_fast;
  if (o.dry_run)
    return print(report_of("sweep", sweep.folder, costs_of(sweep, orders), orders.jobs), o.json);
  write_sweep(sweep, o.file);
  return train_points(o, sweep, orders);
}

const RegisterCommand sweep_command(
    {.name = "sweep",
     .summary = "train every point of a grid of settings; means over seeds",
     .example = "headlab sweep configs/sweeps/char_kinds.yaml train.steps=500 --jobs 2",
     .group = Group::kTrain,
     .asks_for_signals = true},
    run_sweep);

}  // namespace
}  // namespace headlab
