// `headlab ablate RUN`: every head in turn is taken away; what that does to outputs and loss.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/result_grid.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/pruning/ablation.h"
#include "experiments/runs/run_files.h"
#include "experiments/system/progress.h"
#include "experiments/training/evaluate.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;
using Heads = std::vector<HeadId>;

struct AblateOptions {
  std::string run, mode = "zero", out;
  bool pairs = false, all_but_one = false, json = false;
  int64_t resamples = 1000;
  uint64_t seed = 0;
  MeasureOptions measure;
  ComputeOptions compute;
};

// One way of choosing sets of heads, and what came of it in every mode.
struct Study {
  std::string prefix;  // of its variables in the file: "", "pair_", "only_"
  std::string what;
  std::vector<std::string> dims;
  std::vector<Heads> sets, places;  // heads that go; the grid's cells that the result stands in
  std::map<std::string, std::vector<Ablated>> by_mode = {};
};

std::vector<Study> studies_of(const AblateOptions& o, Model& model) {
  const auto singles = single_heads(model);
  std::vector<Study> studies{{"", "this head is ablated", {"layer", "head"}, singles, singles}};
  if (o.pairs) {
    const auto pairs = head_pairs(model);
    studies.push_back(
        {"pair_", "both heads are ablated", {"layer", "head", "layer2", "head2"}, pairs, pairs});
  }
  if (o.all_but_one)
    studies.push_back({"only_",
                       "all heads of this layer but this one are ablated",
                       {"layer", "head"},
                       all_but_one(model),
                       singles});
  return studies;
}

Json study_json(const Study& study, const std::vector<Ablated>& results) {
  Json object;
  auto& removed = object["removed"] = Json::array();
  for (const auto& r : results) {
    const auto heads = to_texts(r.heads);
    removed.push_back(study.prefix.empty() ? Json(heads.front()) : Json(heads));
  }
  if (study.prefix == "only_")
    for (const auto& place : study.places) object["stays"].push_back(to_text(place.front()));
  for (const auto& variable : delta_variables()) {
    auto& values = object[variable.name] = Json::array();
    for (const auto& r : results) {
      const auto found = r.deltas.find(variable.name);
      values.push_back(found == r.deltas.end() ? std::numeric_limits<double>::quiet_NaN()
                                               : found->second);
    }
  }
  return object;
}

// Modes, layers and heads, with one array a delta and study.
ResultGroup group_of(const std::vector<Study>& studies, const std::vector<std::string>& modes,
                     Model& model) {
  const auto grid = alive_heads(model).sizes().vec();
  ResultGroup group{"ablation/self",
                    {{{"mode", "1", "mode of ablation",
                       "zero: o_h = 0; mean: its mean over all positions; uniform: equal weights"},
                      std::ssize(modes),
                      modes}},
                    {}};
  for (const auto& study : studies) {
    add_head_axes(group, study.dims, grid[0], grid[1]);
    std::vector<int64_t> sizes{std::ssize(modes), grid[0], grid[1]};
    if (study.dims.size() == 4) sizes.insert(sizes.end(), grid.begin(), grid.end());
    for (const auto& variable : delta_variables()) {
      auto values = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
      for (int64_t m = 0; m < std::ssize(modes); ++m)
        for (size_t n = 0; n < study.places.size(); ++n) {
          const auto put = [&](HeadId a, HeadId b) {
            auto cell = values[m][a.layer][a.head];
            if (study.dims.size() == 4) cell = cell[b.layer][b.head];
            cell.fill_(study.by_mode.at(modes[m])[n].deltas.at(variable.name));
          };
          const auto& place = study.places[n];
          put(place.front(), place.back());
          put(place.back(), place.front());  // a pair stands on both sides of the diagonal
        }
      ResultArray array{variable, {"mode"}, {}};
      array.about.name = study.prefix + variable.name;
      array.about.comment += "; " + study.what;
      array.dims.insert(array.dims.end(), study.dims.begin(), study.dims.end());
      array.values = numbers(values);
      group.arrays.push_back(std::move(array));
    }
  }
  return group;
}

void print_study(const Study& study, const std::string& mode) {
  fmt::print("{} ({})\n", study.what, mode);
  fmt::print("{:>13}  {:>9}  {:>3} {:>9}  {:>10}  {:>9}  {:>9}  {:>8}  {:>7}\n",
             study.prefix == "pair_" ? "heads" : "head", "loss", "", "accuracy", "l2", "relative",
             "KL [nat]", "cosine", "p");
  const auto& results = study.by_mode.at(mode);
  for (size_t n = 0; n < results.size(); ++n) {
    const auto& d = results[n].deltas;
    fmt::print("{:>13}  {:+9.4f}  {:<3} {:+9.4f}  {:10.4g}  {:9.4g}  {:9.4g}  {:8.5f}  {:7.3g}\n",
               fmt::format("{}", fmt::join(to_texts(study.places[n]), " ")), d.at("loss_delta"),
               d.at("p_value") < 0.01 ? "*" : "", d.at("accuracy_delta"), d.at("l2"),
               d.at("relative"), d.at("kl"), d.at("cosine"), d.at("p_value"));
  }
}

void run_studies(std::vector<Study>& studies, const std::vector<std::string>& modes,
                 const OpenedRun& run, AblationSettings settings, const at::Device& device) {
  int64_t examples = run.data->examples(settings.split), sets = 0, done = 0;
  if (settings.most_batches > 0)
    examples = std::min(examples, settings.most_batches * settings.batch);
  for (const auto& study : studies) sets += std::ssize(study.sets);
  const int64_t batches = (examples + settings.batch - 1) / settings.batch;
  Progress progress(0, std::ssize(modes) * sets * batches, 1);
  for (const auto& mode : modes) {
    settings.mode = ablation_mode(mode);
    for (auto& study : studies)
      study.by_mode[mode] = ablate(*run.model, *run.data, study.sets, settings, device, [&] {
        progress.step(++done, settings.batch * run.data->context());
      });
  }
  progress.finish();
}

int run(AblateOptions& o) {
  const auto device = o.compute.apply();
  auto opened = open_run(o.run, device);
  const auto located = locate_run(o.run).run;
  const auto out = o.out.empty() ? located / "ablation.h5" : std::filesystem::path(o.out);
  require_place(out);
  AblationSettings settings{.split = o.measure.resolve(opened, o.run),
                            .batch = o.measure.batch,
                            .most_batches = o.measure.batches,
                            .resamples = o.resamples,
                            .seed = o.seed};
  const auto whole = evaluate(*opened.model, *opened.data, settings.split, settings.batch,
                              settings.most_batches, device);
  if (whole.tokens == 0) throw DataError(o.run + ": no token of these examples is scored");
  const auto modes = o.mode == "all" ? ablation_modes() : std::vector<std::string>{o.mode};
  auto studies = studies_of(o, *opened.model);
  run_studies(studies, modes, opened, settings, device);

  write_results(out,
                root_attributes(opened.experiment, "ablation", located.filename().string(),
                                manifest_of(opened.experiment, *opened.data, device)),
                {group_of(studies, modes, *opened.model)});
  if (!o.json) {
    fmt::print("whole model: loss {:.4f} nat, accuracy {:.4f} over {} tokens in {} examples\n",
               whole.loss, whole.accuracy, whole.tokens, whole.examples);
    for (const auto& mode : modes)
      for (const auto& study : studies) print_study(study, mode);
    fmt::print("* p < 0.01: the change of the loss is more than chance\n{}\n", out.string());
    return kDone;
  }
  Json report{{"run", std::filesystem::canonical(o.run).string()},
              {"step", opened.step},
              {"loss", whole.loss},
              {"accuracy", whole.accuracy},
              {"tokens", whole.tokens},
              {"examples", whole.examples},
              {"kept", std::ssize(heads_where(alive_heads(*opened.model)))},
              {"out", out.string()}};
  for (const auto& mode : modes)
    for (const auto& study : studies) {
      auto object = study_json(study, study.by_mode.at(mode));
      auto& to = modes.size() == 1 ? report : report[mode];
      if (study.prefix.empty())
        to.update(object);
      else
        to[study.prefix == "pair_" ? "pairs" : "all_but_one"] = object;
    }
  if (modes.size() == 1) report["mode"] = modes.front();
  fmt::print("{}\n", report.dump());
  return kDone;
}

const RegisterCommand ablate_command({
    .name = "ablate",
    .summary = "take every head away in turn and measure outputs, loss and metrics",
    .example = "headlab ablate runs/char_mha/0123abcd-s1337 --mode mean --all-but-one",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<AblateOptions>();
          a.option("run", o->run, "run or checkpoint directory", Arguments::kRequired);
          a.choice("--mode", o->mode, "what an ablated head says",
                   {"zero", "mean", "uniform", "all"});
          a.flag("--pairs", o->pairs, "every pair of heads too");
          a.flag("--all-but-one", o->all_but_one, "every layer with each of its heads alone too");
          a.option("--resamples", o->resamples, "of the paired bootstrap over examples",
                   Arguments::kAboveZero);
          a.option("--seed", o->seed, "of the bootstrap");
          a.option("--out", o->out, "HDF5 file (default: ablation.h5 in the run)");
          o->measure.add_to(a);
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
