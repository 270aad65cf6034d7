#include "experiments/pruning/pruned_run.h"

#include "core/torch.h"
#include "experiments/inference/leak_check.h"
#include "experiments/measuring/importance.h"
#include "experiments/pruning/gates.h"
#include "experiments/pruning/kept_rounds.h"
#include "experiments/pruning/prune_report.h"
#include "experiments/pruning/tuning_report.h"
#include "experiments/pruning/unmeasured_pruning.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

// What the result depends on beside the run and its data.
nlohmann::ordered_json asked_json(const OpenedRun& run, const PruneSettings& s, int64_t bench_batch,
                                  bool slice) {
  nlohmann::ordered_json options;
  if (s.heads.empty())
    options = {{"--count", s.count}, {"ranking", ranking_options(s)}};
  else
    options = {{"--heads", to_texts(s.heads)}};
  options.update(nlohmann::ordered_json{{"--rounds", s.rounds},
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

}  // namespace

PrunedRun prune_run(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                    int64_t bench_batch, bool slice, const std::filesystem::path& out,
                    const Compute& compute) {
  if (!run.data) return prune_unmeasured(source, run, settings, slice, out, compute);
  if (settings.tune > 0)
    check_leaks(*run.model, run.experiment.model.as<ModelOptions>(), run.data->shape(), compute);
  Tuning tuning(
      out, settings.tune, settings.rounds, compute,
      settings.tune > 0 ? asked_json(run, settings, bench_batch, slice) : nlohmann::ordered_json());
  if (auto finished = finished_before(run, settings, out, compute, tuning)) return *finished;
  try {
    return prune_tuned(source, run, settings, bench_batch, slice, out, compute, tuning);
  } catch (const std::exception& e) {
    tuning.fail(e.what());
    throw;
  }
}

}  // namespace headlab
