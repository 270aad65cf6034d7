#include "experiments/pruning/pruned_run.h"

#include "core/torch.h"
#include "experiments/pruning/prune_report.h"
#include "experiments/pruning/tuning_report.h"
#include "experiments/pruning/unmeasured_pruning.h"
#include "experiments/training/leak_check.h"

namespace headlab {
namespace {

PrunedRun prune_tuned(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                      int64_t bench_batch, bool slice, const std::filesystem::path& out,
                      const Compute& compute, Tuning& tuning) {
  const auto pruning = prune_and_measure(run, settings, bench_batch, !out.empty(), compute, tuning);
  if (const auto& ended = tuning.ended()) {
    const auto report = ended_json(out, run, settings, tuning);
    return {report, ended_text(report), ended->exit_code};
  }
  auto report = pruning_json(source, slice, run, pruning);
  if (settings.heads.empty()) report["ranking"] = ranking_options(settings);
  if (settings.heads.empty() && settings.by != "gates" && settings.by != "random")
    report["ranked_on"] = split_name(ranking_split(*run.data, settings.split));
  if (!out.empty()) {
    write_pruned(out, run, slice ? pruning.sliced : run.model, pruning, report, compute.device,
                 tuning);
    report["out"] = std::filesystem::canonical(out).string();
  }
  const auto& uncut = pruning.uncut_ended;
  return {report, pruning_text(report, run.data->task()),
          uncut && uncut->signal != 0 ? uncut->exit_code : 0};
}

}  // namespace

PrunedRun prune_run(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                    int64_t bench_batch, bool slice, const std::filesystem::path& out,
                    const Compute& compute) {
  if (!run.data) return prune_unmeasured(source, run, settings, slice, out, compute);
  if (settings.tune > 0)
    check_leaks(*run.model, run.experiment.model.as<ModelOptions>(), run.data->shape(), compute);
  Tuning tuning(out, settings.tune, settings.rounds, compute);
  try {
    return prune_tuned(source, run, settings, bench_batch, slice, out, compute, tuning);
  } catch (const std::exception& e) {
    tuning.fail(e.what());
    throw;
  }
}

}  // namespace headlab
