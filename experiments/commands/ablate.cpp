// `headlab ablate RUN`: every head in turn is taken away; what that does to outputs and loss.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/answer.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/inference/evaluate.h"
#include "experiments/measuring/ablation_report.h"

namespace headlab {
namespace {

struct AblateOptions {
  std::string run, mode = "zero", out;
  std::vector<std::string> heads;
  bool pairs = false, all_but_one = false, sort = false, json = false;
  MeasureOptions measure;
  GivenData given;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.run("run", run);
    a.choice("--mode", mode, "what an ablated head says",
             {"zero", "mean", "position_mean", "uniform", "all"});
    a.option(
        "--heads", heads,
        "these only: layer:head,head ... (with several sites, cross/layer:head; default: all)");
    a.flag("--pairs", pairs, "every pair of heads too");
    a.flag("--all-but-one", all_but_one, "every layer with each of its heads alone too");
    a.flag("--sort", sort, "tables begin with the largest rise of the loss");
    a.option("--out", out,
             "HDF5 file (default: ablation.h5 in the run; of another mode, other heads or data "
             "ablation-....h5)");
    given.visit(a);
    measure.visit(a);
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

std::vector<AblationStudy> studies_of(const AblateOptions& o, Model& model) {
  std::vector<AblationStudy> studies{study_of_heads(model)};
  if (o.pairs) studies.push_back(study_of_pairs(model));
  if (o.all_but_one) studies.push_back(study_of_all_but_one(model));
  if (o.heads.empty()) return studies;
  const auto heads = parse_heads(o.heads, model);
  const auto alive = alive_heads(model);
  for (const auto& id : heads)
    if (!alive.at(id.site)[id.layer][id.head].item<bool>())
      throw ConfigError(
          fmt::format("ablate --heads {}: is gone already, from {}; choose heads that "
                      "are there",
                      to_text(id), o.run));
  for (auto& study : studies) keep_heads(study, heads);
  return studies;
}

ResultQuestion question_of(const AblateOptions& o, Model& model) {
  ResultQuestion question{"ablation"};
  if (o.mode != "zero") question.measure.push_back(o.mode == "all" ? "all-modes" : o.mode);
  if (!o.heads.empty()) question.measure.push_back(heads_word(o.heads, model));
  if (o.pairs) question.extent.emplace_back("pairs");
  if (o.all_but_one) question.extent.emplace_back("all-but-one");
  return question;
}

int run_ablate(AblateOptions& o) {
  const auto compute = o.compute.apply();
  auto opened = open_named_run(o.run, compute.device);
  Answer answer{o.run, o.out, question_of(o, *opened.model), o.given, o.measure};
  o.given.open(opened);
  answer.require_its_place(opened);
  answer.split = o.measure.resolve(opened, o.run);
  const Sample sample{opened.data.get(), answer.split, o.measure.batch, o.measure.batches};
  const auto whole = evaluate(*opened.model, sample, compute);
  if (whole.tokens == 0) throw DataError(o.run + ": no token of these examples is scored");
  require_finite(whole, *opened.model);
  const auto modes = o.mode == "all" ? ablation_modes() : std::vector<std::string>{o.mode};
  auto studies = studies_of(o, *opened.model);
  const auto& task = opened.data->task();
  run_studies(studies, modes, *opened.model, sample, compute);
  const auto out = answer.write(opened, "ablation", compute.device,
                                studies_groups(studies, modes, *opened.model, task, whole));

  Report report{
      .object = {{"run", std::filesystem::canonical(o.run).string()}, {"step", opened.step}},
      .text = fmt::format("whole model: {}; {}: {}{}\n{}{}\n", means_text(whole),
                          split_name(sample.split), measured_text(whole), examples_text(whole),
                          studies_text(studies, modes, task, o.sort), out.string())};
  for (const auto& mean : whole.means) report.object[mean.name] = mean.value;
  report.object.update(measured_json(whole));
  report.object.update({{"kept", alive_count(*opened.model)},
                        {"out", out.string()},
                        {"p_legend", significance_legend(task)}});
  report.object.update(examples_json(opened, sample.split));
  report.object.update(studies_json(studies, modes, task));
  return print(report, o.json);
}

const RegisterCommand ablate_command(
    {.name = "ablate",
     .summary = "take every head away in turn and measure outputs, loss and metrics",
     .example = "headlab ablate runs/char_mha/0123abcd-s1337 --mode mean --all-but-one",
     .group = Group::kCut},
    run_ablate);

}  // namespace
}  // namespace headlab
