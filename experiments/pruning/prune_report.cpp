#include "experiments/pruning/prune_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/files/replacement_file.h"
#include "core/torch.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/runs/run_files.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

Json rounds_json(const std::vector<PruneRound>& rounds) {
  auto list = Json::array();
  for (const auto& round : rounds)
    list.push_back({{"kept", round.kept},
                    {"removed", to_texts(round.removed)},
                    {"parameters", round.parameters},
                    {"flops_per_token", round.flops},
                    {"loss", round.evaluation.loss},
                    {"accuracy", round.evaluation.accuracy},
                    {"seconds", round.seconds}});
  return list;
}

ResultAxis round_axis(const std::vector<PruneRound>& rounds) {
  return {{"round", "1", "round of pruning", "0: before"}, std::ssize(rounds)};
}

// Which heads of a site went in which round.
void add_removed(ResultGroup& group, const std::vector<PruneRound>& rounds, const SiteHeads& site) {
  add_head_axes(group, {"layer", "head"}, site.layers(), site.heads());
  std::vector<double> removed(rounds.size() * site.layers() * site.heads());
  for (size_t r = 0; r < rounds.size(); ++r)
    for (const auto& id : rounds[r].removed)
      if (id.site == site.name())
        removed[(r * site.layers() + id.layer) * site.heads() + id.head] = 1;
  group.arrays.push_back({{"removed", "1", "head removed in this round", "1: removed"},
                          {"round", "layer", "head"},
                          std::move(removed),
                          /*flags=*/true});
}

// The group /pruning; of a model with several sites, what went of each lies in /pruning/<site>.
std::vector<ResultGroup> pruning_groups(const std::vector<PruneRound>& rounds, Model& model) {
  ResultGroup group{"pruning", {round_axis(rounds)}, {}};
  const auto add = [&](const char* name, const char* units, const char* what, auto value_of) {
    ResultArray array{{name, units, what, what}, {"round"}, {}};
    for (const auto& round : rounds) array.values.push_back(static_cast<double>(value_of(round)));
    group.arrays.push_back(std::move(array));
  };
  add("kept", "1", "heads left", [](const auto& r) { return r.kept; });
  add("parameters", "1", "parameters of the sliced model",
      [](const auto& r) { return r.parameters; });
  add("flops", "1", "floating-point operations a token, forward, full context, sliced",
      [](const auto& r) { return r.flops; });
  add("loss", "nat", "cross entropy a token", [](const auto& r) { return r.evaluation.loss; });
  add("accuracy", "1", "share of tokens predicted right",
      [](const auto& r) { return r.evaluation.accuracy; });
  add("seconds", "s", "time of ranking, pruning and tuning",
      [](const auto& r) { return r.seconds; });
  const auto sites = site_heads(model);
  if (sites.size() == 1) {
    add_removed(group, rounds, sites.front());
    return {group};
  }
  std::vector<ResultGroup> groups{group};
  for (const auto& site : sites) {
    groups.push_back({"pruning/" + site.name(), {round_axis(rounds)}, {}});
    add_removed(groups.back(), rounds, site);
  }
  return groups;
}

std::string csv(const Json& report) {
  std::string text = "round,kept,parameters,flops_per_token,loss,accuracy,seconds,removed\n";
  int64_t n = 0;
  for (const auto& round : report["rounds"]) {
    std::string removed;
    for (const auto& head : round["removed"])
      removed += (removed.empty() ? "" : " ") + head.get<std::string>();
    text += fmt::format("{},{},{},{},{},{},{},{}\n", n++, round["kept"].dump(),
                        round["parameters"].dump(), round["flops_per_token"].dump(),
                        round["loss"].dump(), round["accuracy"].dump(), round["seconds"].dump(),
                        removed);
  }
  return text;
}

}  // namespace

Json pruning_json(const std::string& source, bool slice, const OpenedRun& run,
                  const Pruning& pruning) {
  const auto& rounds = pruning.rounds;
  const auto &first = rounds.front(), &last = rounds.back();
  std::vector<HeadId> removed;
  for (const auto& round : rounds)
    removed.insert(removed.end(), round.removed.begin(), round.removed.end());
  std::sort(removed.begin(), removed.end());
  Json report{{"run", std::filesystem::canonical(source).string()},
              {"step", run.step},
              {"kept", last.kept},
              {"removed", to_texts(removed)},
              {"alive", to_texts(heads_where(alive_heads(*run.model)))},
              {"sliced", slice}};
  for (const auto& [name, value] : pruning.effect.deltas) report[name] = value;
  report["loss_before"] = first.evaluation.loss, report["loss"] = last.evaluation.loss;
  report["accuracy_before"] = first.evaluation.accuracy;
  report["accuracy"] = last.evaluation.accuracy;
  report["tokens"] = last.evaluation.tokens;
  report["parameters_before"] = first.parameters, report["parameters"] = last.parameters;
  report["flops_before"] = first.flops, report["flops"] = last.flops;
  report["flops_saved"] = 1 - last.flops / first.flops;
  report["masked_sliced_difference"] = pruning.effect.sliced_difference;
  report["batch"] = pruning.timed_examples;
  report["seconds_masked"] = pruning.speeds.masked,
  report["seconds_sliced"] = pruning.speeds.sliced;
  report["time_saved"] = 1 - pruning.speeds.sliced / pruning.speeds.masked;
  report["rounds"] = rounds_json(rounds);
  return report;
}

std::string pruning_text(const Json& r) {
  std::string text = "heads kept    loss  accuracy  parameters  MFLOP/token  removed\n";
  for (const auto& round : r["rounds"]) {
    std::string removed;
    for (const auto& head : round["removed"]) removed += head.get<std::string>() + " ";
    text += fmt::format("{:10}  {:6.4f}  {:8.4f}  {:10}  {:11.3f}  {}\n",
                        round["kept"].get<int64_t>(), round["loss"].get<double>(),
                        round["accuracy"].get<double>(), round["parameters"].get<int64_t>(),
                        round["flops_per_token"].get<double>() / 1e6, removed);
  }
  const auto n = [&](const char* name) { return r[name].get<double>(); };
  text += fmt::format(
      "output: l2 {:.4g}, relative {:.4g}, cosine {:.4f}; logits: KL {:.4g} nat\n"
      "loss {:+.4f} nat a token (p = {:.3g}), accuracy {:+.4f}, over {} tokens\n",
      n("l2"), n("relative"), n("cosine"), n("kl"), n("loss_delta"), n("p_value"),
      n("accuracy_delta"), r["tokens"].get<int64_t>());
  return text +
         fmt::format(
             "sliced against masked: logits within {:.2e}; {:.1f} % of FLOPs saved, {:.1f} % of "
             "the time of a forward pass at batch {}\n",
             n("masked_sliced_difference"), 100 * n("flops_saved"), 100 * n("time_saved"),
             r["batch"].get<int64_t>());
}

void write_pruned(const std::filesystem::path& out, const OpenedRun& run,
                  const std::shared_ptr<Model>& model, const std::vector<PruneRound>& rounds,
                  const Json& report, const at::Device& device) {
  auto manifest = manifest_of(run.experiment, *run.data, device);
  manifest["parameters"] = parameters_json(*model, run.experiment.train);
  manifest["pruned"] = report;
  const auto& last = rounds.back().evaluation;
  const auto run_id = out.filename().string();
  write_run(out, run.experiment, run.facts, untrained_checkpoint(*model, run.step, last.loss),
            manifest, {{"val/loss", last.loss}, {"val/accuracy", last.accuracy}},
            [&](const std::filesystem::path& making) {
              write_results(making / "pruning.h5",
                            root_attributes(run.experiment, "pruning", run_id, manifest),
                            pruning_groups(rounds, *model));
              replace_file(making / "pruning.csv", csv(report));
            });
}

}  // namespace headlab
