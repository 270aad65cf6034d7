#include "experiments/pruning/pruned_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/inference/leak_check.h"
#include "experiments/pruning/gates.h"
#include "experiments/pruning/prune_report.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"
#include "experiments/text/number_text.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// What the result depends on beside the run and its data.
Json asked_json(const OpenedRun& run, const PruneSettings& s, int64_t bench_batch, bool slice) {
  Json options;
  if (s.heads.empty())
    options = {{"--count", s.count}, {"ranking", ranking_options(s)}};
  else
    options = {{"--heads", to_texts(s.heads)}};
  options.update(Json{{"--rounds", s.rounds},
                      {"--tune", s.tune},
                      {"--slice", slice},
                      {"--split", split_name(s.judging.split)},
                      {"--batch", s.judging.batch},
                      {"--batches", s.judging.most},
                      {"--bench-batch", bench_batch}});
  return tuning_json("prune", weights_file(run.path, run.step).parent_path(), options);
}

// Of an earlier process, where it has done all of it.
std::optional<PrunedRun> finished_before(const OpenedRun& run, const PruneSettings& settings,
                                         const std::filesystem::path& out, const Compute& compute,
                                         const Tuning& tuning) {
  if (settings.tune == 0) return std::nullopt;
  const auto kept = tuning.finished(settings.by == "gates" ? ungated(run, compute.device) : run);
  if (!kept) return std::nullopt;
  tell("this run is finished; another --out makes it anew");
  auto report = with_numbers(*kept);
  report["out"] = std::filesystem::canonical(out).string();
  return PrunedRun{report, pruning_text(report, run.data->task())};
}

// How tuning ended before its time, and what is left: of the run at `out`, which it keeps.
Json ended_json(const std::filesystem::path& out, const OpenedRun& run, const PruneSettings& s,
                const Tuning& tuning) {
  const auto& status = tuning.ended()->status;
  const auto run_path = std::filesystem::canonical(out).string();
  const int64_t kept = std::ssize(heads_where(alive_heads(*run.model)));
  Json report{{"out", run_path},
              {"status", run_state_name(status.state)},
              {"reason", status.reason},
              {"step", status.step},
              {"round", tuning.round()},
              {"rounds", s.rounds},
              {"updates_left", tuning.updates_left()},
              {"kept", kept}};
  for (const auto& [name, value] : status.metrics) report[name] = metric_json(value);
  return report;
}

std::string ended_text(const Json& r) {
  return fmt::format("{}\n{} at step {}: {}; in round {} of {}, {} updates left in it\n",
                     r["out"].get<std::string>(), r["status"].get<std::string>(),
                     r["step"].get<int64_t>(), r["reason"].get<std::string>(),
                     r["round"].get<int64_t>(), r["rounds"].get<int64_t>(),
                     r["updates_left"].get<int64_t>());
}

PrunedRun prune_tuned(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                      int64_t bench_batch, bool slice, const std::filesystem::path& out,
                      const Compute& compute, Tuning& tuning) {
  const auto pruning = prune_and_measure(run, settings, bench_batch, !out.empty(), compute, tuning);
  if (const auto& ended = tuning.ended()) {
    const bool stopped = ended->status.state == RunState::kStopped;
    const auto status = stopped ? std::optional(ended->status) : std::nullopt;
    if (!tuning.kept()) return {{}, "", ended->exit_code, status};
    const auto report = ended_json(out, run, settings, tuning);
    return {report, ended_text(report), ended->exit_code, status};
  }
  auto report = pruning.report;
  if (report.is_null()) {
    report = pruning_json(source, slice, run, pruning);
    if (settings.heads.empty()) report["ranking"] = ranking_options(settings);
    if (settings.heads.empty() && settings.by != "gates" && settings.by != "random")
      report["ranked_on"] = split_name(ranking_sample(settings.judging_of(run)).split);
  }
  if (!out.empty()) {
    write_pruned(out, run, slice ? pruning.sliced : run.model, pruning, report, compute.device,
                 tuning);
    report["out"] = std::filesystem::canonical(out).string();
  }
  return {report, pruning_text(report, run.data->task())};
}

constexpr const char* kNoData =
    "the imported model has no data; name heads with --heads, or data with --data";

void require_no_data(const PruneSettings& s) {
  const auto refuse = [](const std::string& what) {
    throw ConfigError(fmt::format("prune {}: {}", what, kNoData));
  };
  if (s.tune > 0) refuse("--tune trains on examples");
  if (s.heads.empty() && s.by != "random" && s.by != "gates")
    refuse(fmt::format("--by {} ranks heads by examples", s.by));
}

Json unmeasured_json(const std::string& source, bool slice, OpenedRun& run,
                     const std::vector<PruneRound>& rounds) {
  const auto &first = rounds.front(), &last = rounds.back();
  return {{"run", std::filesystem::canonical(source).string()},
          {"step", run.step},
          {"kept", last.kept},
          {"removed", to_texts(removed_in(rounds))},
          {"alive", to_texts(heads_where(alive_heads(*run.model)))},
          {"sliced", slice},
          {"measured", nullptr},
          {"parameters_before", first.parameters},
          {"parameters", last.parameters},
          {"flops_before", first.flops},
          {"flops", last.flops},
          {"flops_saved", 1 - last.flops / first.flops}};
}

std::string unmeasured_text(const Json& r) {
  return fmt::format(
      "removed {}: {} heads are left; {} parameters -> {}, {} of FLOPs saved\n"
      "nothing was measured: the imported model has no data; --data names some\n",
      fmt::join(r["removed"].get<std::vector<std::string>>(), " "), r["kept"].get<int64_t>(),
      r["parameters_before"].get<int64_t>(), r["parameters"].get<int64_t>(),
      number_text(100 * r["flops_saved"].get<double>(), "{:.1f} %"));
}

// Of a model for which there are no data: nothing is ranked by examples, nothing measured.
PrunedRun prune_unmeasured(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                           bool slice, const std::filesystem::path& out, const Compute& compute) {
  require_no_data(settings);
  const auto rounds = prune(run, settings, compute);
  auto report = unmeasured_json(source, slice, run, rounds);
  if (settings.heads.empty()) report["ranking"] = ranking_options(settings);
  if (!out.empty()) {
    const auto model = slice ? sliced_copy(run, compute.device) : run.model;
    auto manifest = manifest_of(run, run.experiment, *model, compute.device);
    manifest["pruned"] = report;
    write_run(out, run.experiment, run.data_description,
              untrained_checkpoint(*model, run.step, std::nullopt), manifest, {});
    report["out"] = std::filesystem::canonical(out).string();
  }
  return {report, unmeasured_text(report)};
}

}  // namespace

PrunedRun prune_run(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                    int64_t bench_batch, bool slice, const std::filesystem::path& out,
                    const Compute& compute) {
  if (!run.data) return prune_unmeasured(source, run, settings, slice, out, compute);
  if (settings.tune > 0)
    check_leaks(*run.model, run.experiment.model.as<ModelOptions>(), run.data->shape(), compute);
  Tuning tuning(out, settings.tune, settings.rounds, compute,
                settings.tune > 0 ? asked_json(run, settings, bench_batch, slice) : Json());
  if (auto finished = finished_before(run, settings, out, compute, tuning)) return *finished;
  try {
    return prune_tuned(source, run, settings, bench_batch, slice, out, compute, tuning);
  } catch (const std::exception& e) {
    tuning.fail(e.what());
    throw;
  }
}

}  // namespace headlab
