// `headlab analyze RUN|FILE`: what each head does, on chosen data of a run or in exported maps.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/analysis_report.h"
#include "experiments/analysis/map_file.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/commands/report.h"
#include "experiments/pruning/importance.h"
#include "experiments/runs/run_files.h"

namespace headlab {
namespace {

struct AnalyzeOptions {
  std::string source, treebank, out;
  std::vector<std::string> stats, thresholds;
  int64_t top_k = 0, js_stride = 1, maps = 0;
  bool importance = false, json = false;
  GivenData given;
  MeasureOptions measure;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.option("source", source,
             "run or checkpoint directory; or a safetensors file of attention maps: "
             "in.attention [layer,example,head,query,key], in.length [example], ...",
             Arguments::kRequired);
    given.visit(a);
    measure.visit(a);
    a.option("--stats", stats, "names of what is written, or all (default: the usual ones)");
    a.flag("--importance", importance,
           "only how much each head matters: gradients at unit gates, in three reductions");
    a.option("--thresholds", thresholds, "of roles: sink=0.5 previous=0.4 ...");
    a.option("--top-k", top_k, "keys of top_k_mass (default: 5, or what a file says)",
             Arguments::kAboveZero);
    a.option("--js-stride", js_stride, "divergence between heads of every n-th row",
             Arguments::kAboveZero);
    a.option("--maps", maps, "examples whose maps and rollout are written too",
             Arguments::kZeroOrMore);
    a.option("--treebank", treebank, "CoNLL-U file: which relations the heads of a run follow");
    a.option("--out", out,
             "HDF5 file (default: analysis.h5 in the run; of a file: none is written)");
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

AnalysisOptions analysis_of(const AnalyzeOptions& o) {
  return {.names = o.importance ? importance_arrays() : o.stats,
          .top_k = o.top_k > 0 ? std::optional(o.top_k) : std::nullopt,
          .js_stride = o.js_stride,
          .maps = o.maps,
          .treebank = o.treebank,
          .rules = role_rules_with(o.thresholds)};
}

Report report_of(const AnalyzeOptions& o, nlohmann::ordered_json about,
                 const std::vector<Analysis>& analysis) {
  auto text = o.importance ? importance_text(analysis) : analysis_text(analysis);
  if (about.contains("out")) text += about["out"].get<std::string>() + "\n";
  about.update(analysis_json(analysis));
  return {std::move(about), std::move(text)};
}

int run_on_file(const AnalyzeOptions& o) {
  const auto refuse = [](const char* what) { throw ConfigError(fmt::format("analyze {}", what)); };
  if (!o.treebank.empty()) refuse("--treebank: is for runs; maps have no text to read");
  if (o.importance) refuse("--importance: is for runs; maps have no loss");
  if (o.given.data || o.given.text) refuse("--data, --text: are for runs; maps are all there is");
  if (o.compute.backend != "auto") refuse("--backend: is for runs; maps are made already");
  std::map<std::string, std::string> metadata;
  const auto tensors = read_tensors(o.source, &metadata);
  const MapFile file(o.source, tensors, metadata);
  if (!o.out.empty()) require_place(o.out);
  const auto analysis = analyze_maps(file, analysis_of(o));
  nlohmann::ordered_json report{{"file", std::filesystem::canonical(o.source).string()}};
  if (!o.out.empty()) {
    write_analysis(o.out, o.source, analysis);
    report["out"] = o.out;
  }
  return print(report_of(o, std::move(report), {analysis}), o.json);
}

int run_on_run(AnalyzeOptions& o, const Compute& compute) {
  auto options = analysis_of(o);
  auto opened = open_run(o.source, compute.device);
  o.given.open(opened);
  options.split = o.measure.resolve(opened, o.source);
  options.batch = o.measure.batch, options.batches = o.measure.batches;
  const auto located = locate_run(o.source).run;
  const auto out = o.out.empty() ? located / "analysis.h5" : std::filesystem::path(o.out);
  require_place(out);
  const auto analysis = analyze_run(opened, options, compute);
  write_analysis(out, located.filename().string(), opened, analysis, compute.device);
  nlohmann::ordered_json about{{"run", std::filesystem::canonical(o.source).string()},
                               {"step", opened.step},
                               {"out", out.string()}};
  about.update(examples_json(opened, options.split));
  return print(report_of(o, std::move(about), analysis), o.json);
}

int run_analyze(AnalyzeOptions& o) {
  if (o.importance && !o.stats.empty())
    throw ConfigError("analyze --importance: chooses what is written, as --stats does; name one");
  const auto compute = o.compute.apply();
  return std::filesystem::is_regular_file(o.source) ? run_on_file(o) : run_on_run(o, compute);
}

const RegisterCommand analyze_command(
    {.name = "analyze",
     .summary = "what each head does: statistics of its attention, importance, roles",
     .example = "headlab analyze runs/char_mha/0123abcd-s1337 --text 'To be, or not' --maps 1\n"
                "  headlab analyze maps.safetensors --thresholds sink=0.5 --json"},
    run_analyze);

}  // namespace
}  // namespace headlab
