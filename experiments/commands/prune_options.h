// The options of `headlab prune`.
#pragma once

#include <string>
#include <vector>

#include "experiments/commands/command.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/measuring/importance.h"
#include "experiments/pruning/prune.h"

namespace headlab {

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

}  // namespace headlab
