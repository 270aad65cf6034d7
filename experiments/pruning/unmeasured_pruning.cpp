#include "experiments/pruning/unmeasured_pruning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/text/number_text.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

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
  std::vector<HeadId> removed;
  for (const auto& round : rounds)
    removed.insert(removed.end(), round.removed.begin(), round.removed.end());
  std::sort(removed.begin(), removed.end());
  return {{"run", std::filesystem::canonical(source).string()},
          {"step", run.step},
          {"kept", last.kept},
          {"removed", to_texts(removed)},
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

}  // namespace

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

}  // namespace headlab
