// Options of `headlab analyze`, and what they ask of an analysis.
#pragma once

#include <string>
#include <vector>

#include "experiments/analysis/analysis.h"
#include "experiments/commands/command.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/measuring/importance.h"

namespace headlab {

struct AnalyzeOptions {
  std::string source, treebank, out, causal = "auto";
  std::vector<std::string> thresholds;
  int64_t top_k = 0;
  AnalysisOptions analysis;
  bool importance = false, sort = false, json = false;
  GivenData given;
  MeasureOptions measure;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.run("source", source,
          "a safetensors file of attention maps (in.attention [layer,example,head,query,key], "
          "in.length [example], ...) or a run");
    given.visit(a);
    measure.visit(a);
    a.option("--stats", analysis.names,
             "names of what is written, or all (default: the usual ones)");
    a.flag("--importance", importance,
           "only how much each head matters: gradients at unit gates, in three reductions");
    a.option("--thresholds", thresholds, "of roles: sink=0.5 previous=0.4 ...");
    a.option("--top-k", top_k, "keys of top_k_mass (default: 5, or what a file says)",
             Arguments::kAboveZero);
    a.option("--js-stride", analysis.js_stride, "divergence between heads of every n-th row",
             Arguments::kAboveZero);
    a.option("--maps", analysis.maps, "examples whose maps and rollout are written too",
             Arguments::kZeroOrMore);
    a.choice("--causal", causal,
             "of maps: whether no query sees a later key (auto: as metadata or else weights say)",
             {"auto", "yes", "no"});
    a.option("--treebank", treebank, "CoNLL-U file: which relations the heads of a run follow");
    a.flag("--sort", sort, "the table begins with the head of most importance in its layer");
    a.option(
        "--out", out,
        "HDF5 file (default: analysis.h5 in the run; of other data analysis-....h5; of a file: "
        "none is written)");
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

inline AnalysisOptions analysis_of(const AnalyzeOptions& o) {
  auto options = o.analysis;
  if (o.importance) options.names = importance_arrays();
  if (o.top_k > 0) options.top_k = o.top_k;
  options.treebank = o.treebank;
  options.rules = role_rules_with(o.thresholds);
  return options;
}

}  // namespace headlab
