// `headlab prune RUN`: removes heads, says what it cost and what it saved, and writes what is left.
#include "experiments/pruning/prune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "experiments/commands/command.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/commands/run_outcome.h"
#include "experiments/measuring/importance.h"
#include "experiments/pruning/gates.h"
#include "experiments/pruning/pruned_run.h"
#include "experiments/text/shell_word.h"

namespace headlab {
namespace {

struct PruneOptions {
  std::string run, out;
  std::vector<std::string> heads;
  int64_t count = -1, bench_batch = 16;
  double fraction = -1;
  bool slice = false, json = false;
  PruneSettings settings;
  MeasureOptions measure;
  GivenData given;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.run("run", run);
    a.option("--heads", heads,
             "these go: layer:head,head ... (with several sites, cross/layer:head)");
    a.option("--count", count,
             "so many go; those gone already count, so that twice is as once (no default)",
             Arguments::kZeroOrMore);
    a.option("--fraction", fraction, "this share goes, of the heads as built (no default)");
    a.choice("--by", settings.by,
             "what ranks them: the lowest go first; gates without a count: those that are shut",
             prune_orders());
    a.choice("--reduction", settings.reduction, "of importance", importance_reductions());
    a.choice("--norm", settings.norm,
             "importance relative to the model's, to that of its layer (Michel et al. 2019), or as "
             "measured: none, which ranks as global does",
             importance_norms());
    a.flag("--recompute", settings.recompute, "rank anew before each round");
    a.option("--rounds", settings.rounds, "equal steps, each evaluated", Arguments::kAboveZero);
    a.option("--keep-per-layer", settings.keep_per_layer, "heads that every layer keeps",
             Arguments::kZeroOrMore);
    a.option("--tune", settings.tune, "updates after each round, with the run's data and settings",
             Arguments::kZeroOrMore);
    a.option("--seed", settings.seed, "of --by random");
    a.flag("--slice", slice, "write the smaller model instead of a masked one");
    a.option("--out", out, "new run directory for the pruned model");
    a.option("--bench-batch", bench_batch, "examples of a timed forward pass",
             Arguments::kAboveZero);
    given.visit(a);
    measure.visit(a);
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

void check(const PruneOptions& o) {
  const auto refuse = [](const std::string& what) { throw ConfigError("prune " + what); };
  const int given = !o.heads.empty() + (o.count >= 0) + (o.fraction != -1);
  const bool by_gates = o.settings.by == "gates";
  if (given > 1 || (given == 0 && !by_gates))
    refuse("needs one of --heads L:h,h ..., --count N and --fraction F");
  if (by_gates && o.settings.recompute) refuse("--recompute: is not for --by gates");
  if (o.fraction != -1 && !(o.fraction >= 0 && o.fraction <= 1))
    refuse(fmt::format("--fraction {}: must lie in 0 to 1", o.fraction));
  if (!o.heads.empty() && (o.settings.rounds > 1 || o.settings.keep_per_layer > 0))
    refuse("--rounds, --keep-per-layer: are for --count or --fraction");
  if (o.slice && o.out.empty()) refuse("--slice: needs --out DIR for the smaller checkpoint");
  if (o.settings.tune > 0 && o.out.empty()) refuse("--tune: needs --out DIR for what it trains");
  if (o.settings.tune == 0) require_free(o.out);
}

PruneSettings settings_of(PruneOptions& o, const OpenedRun& run) {
  auto s = o.settings;
  s.judging.split = o.measure.resolve(run, o.run);
  s.judging.batch = o.measure.batch, s.judging.most = o.measure.batches;
  const int64_t built = built_heads(*run.model);
  if (o.count > built)
    throw ConfigError(fmt::format("prune --count {}: {} was built with {} heads; choose no more",
                                  o.count, o.run, built));
  s.heads = parse_heads(o.heads, *run.model);
  const bool by_gates = s.by == "gates";  // without an amount: those that have shut
  if (by_gates && !has_gates(*run.model))
    throw ConfigError(
        fmt::format("prune --by gates: the heads of {} have none; see convert --to gated", o.run));
  if (o.count >= 0) s.count = o.count;
  if (o.fraction != -1) s.count = std::llround(o.fraction * static_cast<double>(built));
  if (by_gates && o.count < 0 && o.fraction == -1)
    s.count = std::min(gone_or_shut(*run.model), most_gone(*run.model, s.keep_per_layer));
  return s;
}

int run_prune(PruneOptions& o) {
  check(o);
  if (o.settings.tune > 0) note_signals();
  const auto compute = o.compute.apply();
  auto opened = open_named_run(o.run, compute.device);
  o.given.open_if_any(opened, o.settings.tune > 0);
  const auto s = settings_of(o, opened);
  auto pruned = prune_run(o.run, opened, s, o.bench_batch, o.slice, o.out, compute);
  if (pruned.report.is_null()) return code_of_early_stop().value_or(pruned.exit_code);
  if (pruned.stopped) say_what_goes_on(*pruned.stopped, shell_word(o.run));
  add_code(pruned.report, opened);
  print({.object = pruned.report, .text = pruned.text}, o.json);
  return pruned.exit_code;
}

const RegisterCommand prune_command(
    {.name = "prune",
     .summary = "remove heads and say what it did to outputs, loss and speed",
     .example = "headlab prune RUN --fraction 0.5 --slice --out runs/half\n"
                "  headlab prune RUN --heads 0:1,3 2:0 --json",
     .group = Group::kCut},
    run_prune);

}  // namespace
}  // namespace headlab
