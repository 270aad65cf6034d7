// `headlab compare COMPARE.yaml`: kinds of heads on tasks, each with its own learning rate, as many
// parameters and the same seeds: paired differences to a baseline.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/sweep_report.h"
#include "experiments/comparison/comparison_costs.h"
#include "experiments/comparison/comparison_report.h"
#include "experiments/sweeps/sweep_run.h"
#include "experiments/system/output.h"
#include "experiments/system/own_files.h"
#include "experiments/system/script.h"
#include "experiments/system/signals.h"

namespace headlab {
namespace {

struct CompareOptions {
  std::string compared, out = "runs", task, device = "auto";
  std::optional<std::string> against, protocol;
  std::vector<std::string> overrides;
  int64_t jobs = 0, ranks = 1;
  bool skip_pruning = false, figure = false, dry_run = false, json = false;

  void visit(Arguments& a) {
    a.option(
        "compare", compared,
        "YAML file with tasks, kinds, rates, choose_seeds, seeds, lengths, match and baseline; "
        "or a kind of heads",
        Arguments::kRequired);
    a.option("overrides", overrides, "a.b=value ..., of every task");
    a.option("--task", task, "train this task of the file alone (default: all)");
    a.option("--against", against,
             "of a kind of heads: the one it is compared with (default: mha)");
    a.option("--protocol", protocol,
             "of a kind of heads: a YAML file whose tasks, rates, seeds and lengths are taken "
             "(default: headlab's own configs/compare/kinds.yaml)");
    a.option("--out", out, "directory of runs");
    a.option("--device", device, "of the trainings: auto, cpu, cuda or cuda:N");
    a.option("--jobs", jobs, kJobsHelp, Arguments::kAboveZero);
    a.option("--ranks", ranks, kRanksHelp, Arguments::kAboveZero);
    a.flag("--skip-pruning", skip_pruning, "leave out the heads that survive pruning");
    a.flag("--figure", figure,
           "draw the figure beside the table, compare.png and compare.svg, by the package "
           "headlab_log");
    a.flag("--dry-run", dry_run, "points, FLOPs, bytes and hours, from a short start of each arm");
    a.flag("--json", json, "print one JSON object at the end");
  }
};

SweepOrders orders_of(const CompareOptions& o, const FrozenSweep& sweep) {
  return orders_here(sweep, o.jobs, o.ranks, o.device);
}

// With what was measured of the same runs before; a signal, that in the trainings too, ends it
// between two runs.
Survivors survivors_of(const Comparison& comparison) {
  const auto kept = std::make_shared<KeptSurvivors>(comparison.folder / "surviving_heads.json");
  return [kept](const std::filesystem::path& run) -> std::optional<SurvivingHeads> {
    if (const auto known = kept->find(run)) return known;
    if (StopSignals::received() != 0) return std::nullopt;
    tell("prunes {}", run.string());
    const auto heads = surviving_heads(run);
    kept->add(run, heads);
    return heads;
  };
}

int report_results(const CompareOptions& o, const Comparison& comparison, const ChosenRates& rates,
                   const Stage& whole, const StageEnd& end) {
  const auto none = [](const std::filesystem::path&) { return std::optional<SurvivingHeads>(); };
  const auto tasks =
      compare_arms(comparison, rates, whole, end, o.skip_pruning ? none : survivors_of(comparison));
  const auto tables = comparison_tables(comparison, rates, tasks);
  const Report report{.object = comparison_json(comparison, rates, tasks),
                      .text = comparison_text(comparison, rates, tasks, tables)};
  write_comparison(comparison, report.object, report.text, tables);
  print(report, o.json);
  if (o.figure && run_script(log_command(), {"figure", comparison.folder.string()}) != 0)
    throw RunError(fmt::format("{}: its figure was not drawn; the tables lie there",
                               comparison.folder.string()));
  return StopSignals::received() != 0 ? static_cast<int>(kResumable) : static_cast<int>(kDone);
}

int said(int code) {
  if (code == kResumable) tell("not all points are finished; the same command goes on");
  return code;
}

// `choosing` grows by what searches ask for. Nothing is trained where there is one rate alone.
StageEnd choose_rates(const CompareOptions& o, const Comparison& comparison, Stage& choosing) {
  if (choosing.sweep.points.empty()) return {};
  for (size_t before = 0;;) {
    const auto orders = orders_of(o, choosing.sweep);
    const auto points = choosing.sweep.points.size();
    tell("{} more trainings choose the rates, after {}; {} at once", points - before, before,
         orders.jobs);
    before = points;
    auto end = run_stage(choosing, orders);
    if (end.code == kResumable) return end;
    auto wider = wider_stage(comparison, choosing, end);
    if (!wider) return end;
    choosing = std::move(*wider);
  }
}

// A word that is no file.
bool names_kind(const CompareOptions& o) {
  const std::filesystem::path file(o.compared);
  std::error_code none;
  return !std::filesystem::is_regular_file(file, none) && !file.has_extension() &&
         !file.has_parent_path();
}

ComparisonSource source_of(const CompareOptions& o) {
  if (!names_kind(o)) {
    for (const auto& [name, given] :
         {std::pair("--against", o.against), {"--protocol", o.protocol}})
      if (given)
        throw ConfigError(fmt::format(
            "{}: belongs to a kind of heads, and {} is a file, which has its own arms and baseline",
            name, o.compared));
    return comparison_in(o.compared);
  }
  const auto usual = own_folder() / "configs/compare/kinds.yaml";
  return comparison_of_kinds(o.compared, o.against.value_or("mha"),
                             o.protocol ? std::filesystem::path(*o.protocol) : usual);
}

Report costs_report(const CompareOptions& o, const Comparison& comparison) {
  const auto orders = orders_of(o, likely_final_stage(comparison).sweep);
  return report_of("comparison", comparison.folder, costs_of(comparison, orders), orders.jobs);
}

int run_compare(const CompareOptions& o) {
  const auto comparison = resolve_comparison(source_of(o), o.overrides, o.out, o.task);
  if (o.dry_run) return print(costs_report(o, comparison), o.json);
  if (o.figure) log_command();  // that it is not there is said before anything is trained
  write_comparison_file(comparison);
  tell("{}", comparison.folder.string());
  if (names_kind(o)) {  // who writes a file sees what it asks for, and has --dry-run
    auto costs = costs_report(o, comparison).text;
    costs.pop_back();
    tell("{}", costs.substr(costs.find_last_of('\n') + 1));
  }
  auto choosing = choosing_stage(comparison);
  const auto chosen = choose_rates(o, comparison, choosing);
  if (chosen.code == kResumable) return said(chosen.code);
  const auto rates = chosen_rates(comparison, choosing, chosen);
  const auto whole = final_stage(comparison, rates);
  const auto orders = orders_of(o, whole.sweep);
  tell("{} trainings are compared, {} at once", whole.sweep.points.size(), orders.jobs);
  const auto end = run_stage(whole, orders);
  const int code = report_results(o, comparison, rates, whole, end);
  if (chosen.code != kDone) return said(chosen.code);
  if (end.code != kDone) return said(end.code);
  return said(code);
}

const RegisterCommand compare_command(
    {.name = "compare",
     .summary = "kinds of heads against a baseline: rates, seeds, sizes and paired differences",
     .example = "headlab compare configs/compare/quick.yaml --jobs 2",
     .group = Group::kTrain,
     .asks_for_signals = true},
    run_compare);

}  // namespace
}  // namespace headlab
