// `headlab analyze RUN|FILE`: what each head does, on chosen data of a run or in exported maps.
#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/analysis_report.h"
#include "experiments/analysis/relations_report.h"
#include "experiments/commands/analyze_options.h"
#include "experiments/commands/report.h"
#include "experiments/runs/run_files.h"

namespace headlab {
namespace {

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
  if (!o.out.empty()) require_place(o.out);
  const auto analysis = analyze_maps(file, analysis_of(o));
  auto about = maps_json(o.source, file);
  if (!o.out.empty()) {
    write_analysis(o.out, o.source, analysis, about);
    about["out"] = o.out;
  }
  return print(report_of(o, std::move(about), {analysis}, maps_text(file)), o.json);
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
  const auto located = locate_run(o.source).run;
  const auto out = o.out.empty() ? located / "analysis.h5" : std::filesystem::path(o.out);
  require_place(out);
  const auto analysis = analyze_run(opened, options, compute);
  write_analysis(out, located.filename().string(), opened, analysis, options.split, compute.device);
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
