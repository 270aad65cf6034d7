// `headlab prune RUN`: removes heads, says what it cost and what it saved, and writes what is left.
#include "experiments/pruning/prune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/files/replacement_file.h"
#include "core/torch.h"
#include "experiments/analysis/result_grid.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/pruning/gates.h"
#include "experiments/pruning/importance.h"
#include "experiments/runs/run_files.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

struct PruneOptions {
  std::string run, out;
  std::vector<std::string> heads;
  int64_t count = -1, bench_batch = 16;
  double fraction = -1;
  bool slice = false, json = false;
  PruneSettings settings;
  MeasureOptions measure;
  ComputeOptions compute;
};

void check(const PruneOptions& o) {
  const auto refuse = [](const std::string& what) { throw ConfigError("prune " + what); };
  const int given = !o.heads.empty() + (o.count >= 0) + (o.fraction != -1);
  const bool by_gates = o.settings.by == "gates";
  if (given > 1 || (given == 0 && !by_gates))
    refuse("needs one of --heads L:h,h ..., --count N and --fraction F");
  if (by_gates && o.settings.recompute) refuse("--recompute: is not for --by gates");
  if (o.fraction != -1 && !(o.fraction >= 0 && o.fraction <= 1))
    refuse(fmt::format("--fraction {}: must lie in 0 to 1", o.fraction));
  if (!o.heads.empty() && o.settings.rounds > 1) refuse("--rounds: is for --count or --fraction");
  if (o.slice && o.out.empty()) refuse("--slice: needs --out DIR for the smaller checkpoint");
  if (o.settings.tune > 0 && o.out.empty()) refuse("--tune: needs --out DIR for what it trains");
  if (!o.out.empty() && look_at_run(o.out).kind != RunSight::Kind::kAbsent)
    throw RunError(o.out + ": a run is there already; choose another place");
}

PruneSettings settings_of(PruneOptions& o, const OpenedRun& run) {
  auto s = o.settings;
  s.split = o.measure.resolve(run, o.run);
  s.measured_batch = o.measure.batch;
  s.most_batches = o.measure.batches;
  const int64_t built = built_heads(*run.model);
  if (o.count > built)
    throw ConfigError(
        fmt::format("prune --count {}: {} was built with {} heads; choose at most "
                    "that many",
                    o.count, o.run, built));
  s.heads = parse_heads(o.heads, *run.model);
  if (s.by == "gates") {
    const auto gates = gate_grid(*run.model);
    if (gates.log_alpha.isnan().all().item<bool>())
      throw ConfigError(fmt::format(
          "prune --by gates: the heads of {} have none; see convert --to gated", o.run));
    if (o.count < 0 && o.fraction == -1) {  // those that have shut
      s.count = built - std::ssize(heads_where(alive_heads(*run.model))) +
                (gates.test == 0).sum().item<int64_t>();
      return s;
    }
  }
  s.count = o.fraction != -1 ? std::llround(o.fraction * static_cast<double>(built))
                             : std::max<int64_t>(o.count, 0);
  return s;
}

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

// What pruning did to the first round's model, in one object.
Json report_of(const PruneOptions& o, const OpenedRun& run, const std::vector<PruneRound>& rounds,
               const PruneEffect& effect, const Speeds& speeds) {
  const auto &first = rounds.front(), &last = rounds.back();
  std::vector<HeadId> removed;
  for (const auto& round : rounds)
    removed.insert(removed.end(), round.removed.begin(), round.removed.end());
  std::sort(removed.begin(), removed.end());
  Json report{{"run", std::filesystem::canonical(o.run).string()},
              {"step", run.step},
              {"kept", last.kept},
              {"removed", to_texts(removed)},
              {"alive", to_texts(heads_where(alive_heads(*run.model)))},
              {"sliced", o.slice}};
  for (const auto& [name, value] : effect.deltas) report[name] = value;
  report["loss_before"] = first.evaluation.loss, report["loss"] = last.evaluation.loss;
  report["accuracy_before"] = first.evaluation.accuracy;
  report["accuracy"] = last.evaluation.accuracy;
  report["tokens"] = last.evaluation.tokens;
  report["parameters_before"] = first.parameters, report["parameters"] = last.parameters;
  report["flops_before"] = first.flops, report["flops"] = last.flops;
  report["flops_saved"] = 1 - last.flops / first.flops;
  report["masked_sliced_difference"] = effect.sliced_difference;
  report["batch"] = o.bench_batch;
  report["seconds_masked"] = speeds.masked, report["seconds_sliced"] = speeds.sliced;
  report["time_saved"] = 1 - speeds.sliced / speeds.masked;
  report["rounds"] = rounds_json(rounds);
  return report;
}

void print_pruning(const Json& r) {
  fmt::print("heads kept    loss  accuracy  parameters  MFLOP/token  removed\n");
  for (const auto& round : r["rounds"]) {
    std::string removed;
    for (const auto& head : round["removed"]) removed += head.get<std::string>() + " ";
    fmt::print("{:10}  {:6.4f}  {:8.4f}  {:10}  {:11.3f}  {}\n", round["kept"].get<int64_t>(),
               round["loss"].get<double>(), round["accuracy"].get<double>(),
               round["parameters"].get<int64_t>(), round["flops_per_token"].get<double>() / 1e6,
               removed);
  }
  const auto n = [&](const char* name) { return r[name].get<double>(); };
  fmt::print("output: l2 {:.4g}, relative {:.4g}, cosine {:.4f}; logits: KL {:.4g} nat\n", n("l2"),
             n("relative"), n("cosine"), n("kl"));
  fmt::print("loss {:+.4f} nat a token (p = {:.3g}), accuracy {:+.4f}, over {} tokens\n",
             n("loss_delta"), n("p_value"), n("accuracy_delta"), r["tokens"].get<int64_t>());
  fmt::print(
      "sliced against masked: logits within {:.2e}; {:.1f} % of FLOPs saved, {:.1f} % of the "
      "time of a forward pass at batch {}\n",
      n("masked_sliced_difference"), 100 * n("flops_saved"), 100 * n("time_saved"),
      r["batch"].get<int64_t>());
}

// The group /pruning.
ResultGroup pruning_group(const std::vector<PruneRound>& rounds, Model& model) {
  const auto grid = alive_heads(model).sizes().vec();
  const auto R = static_cast<int64_t>(rounds.size());
  ResultGroup group{"pruning", {{{"round", "1", "round of pruning", "0: before"}, R}}, {}};
  add_head_axes(group, {"layer", "head"}, grid[0], grid[1]);
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
  auto removed = at::zeros({R, grid[0], grid[1]}, at::kDouble);
  for (int64_t r = 0; r < R; ++r)
    for (const auto& id : rounds[r].removed) removed[r][id.layer][id.head] = 1;
  group.arrays.push_back({{"removed", "1", "head removed in this round", "1: removed"},
                          {"round", "layer", "head"},
                          numbers(removed),
                          /*flags=*/true});
  return group;
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

void write(const PruneOptions& o, const OpenedRun& run, std::shared_ptr<Model> model,
           const std::vector<PruneRound>& rounds, const Json& report, const at::Device& device) {
  auto manifest = manifest_of(run.experiment, *run.data, device);
  manifest["pruned"] = report;
  const auto& last = rounds.back().evaluation;
  const auto run_id = std::filesystem::path(o.out).filename().string();
  write_run(o.out, run.experiment, untrained_checkpoint(*model, run.step, last.loss), manifest,
            {{"val/loss", last.loss}, {"val/accuracy", last.accuracy}},
            [&](const std::filesystem::path& making) {
              write_results(making / "pruning.h5",
                            root_attributes(run.experiment, "pruning", run_id, manifest),
                            {pruning_group(rounds, *model)});
              replace_file(making / "pruning.csv", csv(report));
            });
}

int run(PruneOptions& o) {
  check(o);
  const auto device = o.compute.apply();
  auto opened = open_run(o.run, device);
  const auto settings = settings_of(o, opened);
  const auto whole = copy_of(opened, device);
  const auto rounds = prune(opened, settings, device);
  const auto sliced = sliced_copy(opened, device);
  const auto effect =
      measure_effect(*whole, *opened.model, *sliced, *opened.data, settings, device);
  const int64_t examples = std::min(o.bench_batch, opened.data->examples(settings.split));
  const auto ids = opened.data->eval_batch(settings.split, 0, examples).ids.to(device);
  constexpr int64_t kRepeats = 20;
  auto report =
      report_of(o, opened, rounds, effect, compare_speed(*opened.model, *sliced, ids, kRepeats));
  report["batch"] = examples;
  if (!o.out.empty()) {
    write(o, opened, o.slice ? sliced : opened.model, rounds, report, device);
    report["out"] = std::filesystem::canonical(o.out).string();
  }
  if (o.json)
    fmt::print("{}\n", report.dump());
  else
    print_pruning(report);
  return kDone;
}

const RegisterCommand prune_command({
    .name = "prune",
    .summary = "remove heads and say what it did to outputs, loss and speed",
    .example = "headlab prune runs/char_mha/0123abcd-s1337 --fraction 0.5 --slice --out runs/half\n"
               "  headlab prune runs/char_mha/0123abcd-s1337 --heads 0:1,3 2:0 --json",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<PruneOptions>();
          auto& s = o->settings;
          a.option("run", o->run, "run or checkpoint directory", Arguments::kRequired);
          a.option("--heads", o->heads, "these go: layer:head,head ...");
          a.option("--count", o->count,
                   "so many go; those that are gone already count, so that twice is as once (no "
                   "default)",
                   Arguments::kZeroOrMore);
          a.option("--fraction", o->fraction,
                   "this share goes, of the heads as built (no default)");
          a.choice(
              "--by", s.by,
              "what ranks them: the lowest go first; gates without a count: those that are shut",
              prune_orders());
          a.choice("--reduction", s.reduction, "of importance", importance_reductions());
          a.choice("--norm", s.norm, "importance relative to that of its layer, or of all",
                   {"layer", "global"});
          a.flag("--recompute", s.recompute, "rank anew before each round");
          a.option("--rounds", s.rounds, "equal steps, each evaluated", Arguments::kAboveZero);
          a.option("--keep-per-layer", s.keep_per_layer, "heads that every layer keeps",
                   Arguments::kZeroOrMore);
          a.option("--tune", s.tune, "updates after each round, with the run's data and settings",
                   Arguments::kZeroOrMore);
          a.option("--seed", s.seed, "of --by random, and of the bootstrap");
          a.flag("--slice", o->slice, "write the smaller model instead of a masked one");
          a.option("--out", o->out, "new run directory for the pruned model");
          a.option("--bench-batch", o->bench_batch, "examples of a timed forward pass",
                   Arguments::kAboveZero);
          o->measure.add_to(a);
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
