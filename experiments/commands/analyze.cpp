// `headlab analyze RUN|FILE`: what each head does, on chosen data of a run or in exported maps.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/analysis.h"
#include "experiments/analysis/analysis_report.h"
#include "experiments/commands/answer.h"
#include "experiments/commands/command.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/measuring/importance.h"
#include "experiments/models/finite_weights.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

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

AnalysisOptions analysis_of(const AnalyzeOptions& o) {
  auto options = o.analysis;
  if (o.importance) options.names = importance_arrays();
  if (o.top_k > 0) options.top_k = o.top_k;
  options.treebank = o.treebank;
  options.rules = role_rules_with(o.thresholds);
  return options;
}

Report report_of(const AnalyzeOptions& o, nlohmann::ordered_json about,
                 const std::vector<Analysis>& analysis, std::string text = "") {
  text += o.importance ? importance_text(analysis, o.sort) : analysis_text(analysis, o.sort);
  text += relations_text(analysis);
  if (about.contains("out")) text += about["out"].get<std::string>() + "\n";
  about.update(analysis_json(analysis));
  return {std::move(about), std::move(text)};
}

void refuse(bool given, const char* why) {
  if (given) throw ConfigError(fmt::format("analyze {}", why));
}

int run_on_file(const AnalyzeOptions& o) {
  refuse(!o.treebank.empty(), "--treebank: is for runs; maps have no text to read");
  refuse(o.importance, "--importance: is for runs; maps have no loss");
  refuse(o.sort, "--sort: is for runs; maps have no importance");
  refuse(o.given.data || o.given.text, "--data, --text: are for runs; maps are all there is");
  refuse(o.compute.backend != "auto", "--backend: is for runs; maps are made already");
  std::map<std::string, std::string> metadata;
  const auto tensors = read_tensors(o.source, &metadata);
  const auto causal = o.causal == "auto" ? std::nullopt : std::optional(o.causal == "yes");
  const MapFile file(o.source, tensors, metadata, causal);
  std::optional<OutputFile> out;
  if (!o.out.empty()) out.emplace(o.out, std::vector<std::filesystem::path>{o.source}, "analysis");
  const auto analysis = analyze_maps(file, analysis_of(o));
  auto about = maps_json(o.source, file);
  if (out) {
    out->write([&](const auto& to) { write_analysis(to, o.source, analysis, about); });
    about["out"] = o.out;
  }
  return print(report_of(o, std::move(about), {analysis}, maps_text(file)), o.json);
}

ResultQuestion question_of(const AnalyzeOptions& o) {
  ResultQuestion question{"analysis"};
  const auto& a = o.analysis;
  if (o.top_k > 0) question.measure.push_back(fmt::format("top-k-{}", o.top_k));
  if (a.js_stride > 1) question.measure.push_back(fmt::format("js-stride-{}", a.js_stride));
  for (const auto& threshold : o.thresholds) question.measure.push_back(file_word(threshold, 40));
  if (o.importance) question.extent.emplace_back("importance");
  for (const auto& name : a.names) question.extent.push_back(file_word(name, 40));
  if (!o.treebank.empty()) question.extent.emplace_back("treebank");
  if (a.maps > 0) question.extent.push_back(fmt::format("maps-{}", a.maps));
  return question;
}

int run_on_run(AnalyzeOptions& o, const Compute& compute) {
  refuse(o.causal != "auto", "--causal: is for files of maps; the model of a run knows");
  auto options = analysis_of(o);
  auto opened = open_named_run(o.source, compute.device);
  o.given.open(opened);
  const auto& shape = opened.data_description.shape;
  refuse(!o.treebank.empty() && (shape.vocabulary == 0 || shape.source_vocabulary > 0),
         "--treebank: is for models that read one text");
  options.split = o.measure.resolve(opened, o.source);
  options.batch = o.measure.batch, options.batches = o.measure.batches;
  const Answer answer{o.source,  o.out,         question_of(o), o.given,
                      o.measure, options.split, o.treebank};
  answer.require_its_place(opened);
  if (!not_finite(module_tensors(*opened.model)).empty())
    throw NotFiniteError("analyze: heads of weights that are not finite have no statistics");
  const auto analysis = analyze_run(opened, options, compute);
  const auto out = answer.write(opened, fmt::format("analysis on {}", split_name(options.split)),
                                compute.device, analysis_groups(analysis));
  nlohmann::ordered_json about{{"run", std::filesystem::canonical(o.source).string()},
                               {"step", opened.step},
                               {"out", out.string()}};
  about.update(examples_json(opened, options.split));
  return print(report_of(o, std::move(about), analysis), o.json);
}

int run_analyze(AnalyzeOptions& o) {
  refuse(o.importance && !o.analysis.names.empty(),
         "--importance: chooses what is written, as --stats does; name one");
  const auto& names = o.analysis.names;
  refuse(o.sort && !names.empty() &&
             std::none_of(names.begin(), names.end(),
                          [](const auto& name) {
                            return name == "importance" || name == "importance_global" ||
                                   name == "all";
                          }),
         "--sort: needs importance_global or importance among --stats");
  const auto compute = o.compute.apply();
  return std::filesystem::is_regular_file(o.source) ? run_on_file(o) : run_on_run(o, compute);
}

const RegisterCommand analyze_command(
    {.name = "analyze",
     .summary = "what each head does: statistics of its attention, importance, roles",
     .example = "headlab analyze runs/char_mha/0123abcd-s1337 --text 'To be, or not' --maps 1\n"
                "  headlab analyze maps.safetensors --thresholds sink=0.5 --json",
     .group = Group::kLook},
    run_analyze);

}  // namespace
}  // namespace headlab
