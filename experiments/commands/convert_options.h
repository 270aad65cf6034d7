// The options of `headlab convert`.
#pragma once

#include <string>

#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/pruning/gates.h"

namespace headlab {

struct ConvertOptions {
  std::string run, to, out;
  int64_t shared_dim = 0, seeds = 5, kv_heads = 0, tune = 0, batches = 0;
  GateStart gates;
  bool align = false, freeze = false, json = false;
  GivenData given;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.run("run", run);
    a.choice("--to", to, "kind of heads", {"collaborative", "gated", "mha"});
    a.option("--shared-dim", shared_dim,
             "query and key features that heads share; fewer than all: the best of low rank",
             Arguments::kAboveZero);
    a.option("--seeds", seeds, "random starts of the decomposition, beside the block start",
             Arguments::kZeroOrMore);
    a.option("--kv-heads", kv_heads, "key/value heads that are left: each is the mean of a group",
             Arguments::kAboveZero);
    a.flag("--align", align,
           "before --kv-heads merges them, bring heads with similar keys and values into one group "
           "and turn them towards each other; their order changes, the layer's function does not");
    a.option("--target-heads", gates.heads,
             "gated: heads of the model that --tune leaves open; reached over its first half",
             Arguments::kAboveZero);
    a.option("--penalty", gates.penalty, "gated: loss of an open head instead (default: 1)",
             Arguments::kZeroOrMore);
    a.option("--init", gates.init,
             "gated: log_alpha of every head before --tune; above 2.4 the model is the old one");
    a.flag("--freeze", freeze, "gated: --tune trains the gates alone");
    a.option("--out", out, "new run directory for the converted model");
    a.option("--tune", tune,
             "train on in --out for N updates, by the run's settings, where its schedule stood",
             Arguments::kAboveZero);
    a.option("--batches", batches, "validation batches to measure on; 0: the whole split",
             Arguments::kZeroOrMore);
    given.visit(a);
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

}  // namespace headlab
