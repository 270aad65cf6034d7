// `headlab analyze RUN|FILE`: what each head does, on chosen data of a run or in exported maps.
#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/analysis_report.h"
#include "experiments/analysis/relations_report.h"
#include "experiments/commands/analyze_options.h"
#include "experiments/commands/answer.h"
#include "experiments/commands/report.h"
#include "experiments/models/finite_weights.h"
#include "experiments/system/output_file.h"

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
