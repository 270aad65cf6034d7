#include "experiments/comparison/surviving_heads.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"
#include "experiments/inference/evaluate.h"
#include "experiments/measuring/ablation.h"
#include "experiments/models/site_heads.h"
#include "experiments/runs/open_run.h"
#include "experiments/text/file_text.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A batch more changes the number of heads seldom and costs as many passes as there are heads.
constexpr int64_t kBatches = 5;

std::vector<HeadId> least_missed_first(Model& model, const Sample& judging) {
  const auto rise = change_name(judging.data->task().metrics().front());
  auto ablated =
      ablate(model, ranking_sample(judging), single_heads(model), AblationMode::kZero, {});
  std::stable_sort(ablated.begin(), ablated.end(), [&](const Ablated& a, const Ablated& b) {
    return a.changes.at(rise) < b.changes.at(rise);
  });
  std::vector<HeadId> heads;
  for (const auto& one : ablated) heads.push_back(one.heads.front());
  return heads;
}

}  // namespace

SurvivingHeads surviving_heads(const fs::path& run) {
  const auto opened = open_run_and_data(run, at::kCPU);
  use_settings(opened.experiment.train);
  auto& model = *opened.model;
  const Sample sample{opened.data.get(), Split::kValidation, opened.experiment.train.eval_batch,
                      kBatches};
  const auto measure = [&] { return evaluate(model, sample, {}); };
  const auto whole = measure();
  SurvivingHeads heads{.built = built_heads(model), .kept = alive_count(model)};
  heads.examples = whole.examples;
  for (const auto& head : least_missed_first(model, sample)) {
    remove_heads(model, {head});
    const double rise = measure().loss() - whole.loss();
    if (!(rise <= kUnmissedRise)) break;
    --heads.kept;
    heads.rise = rise;
  }
  return heads;
}

KeptSurvivors::KeptSurvivors(fs::path file) : file_(std::move(file)) {
  const auto kept = parse_json<Json>(file_text(file_));
  if (!kept || !kept->is_object()) return;
  try {
    for (const auto& [run, heads] : kept->items())
      if (heads.contains("ranked_on"))  // else by a version that ranked and judged on one split
        known_[run] = {heads.at("built").get<int64_t>(), heads.at("kept").get<int64_t>(),
                       heads.at("rise").get<double>(), heads.at("examples").get<int64_t>()};
  } catch (const Json::exception&) {
    known_.clear();
  }
}

std::optional<SurvivingHeads> KeptSurvivors::find(const fs::path& run) const {
  const auto found = known_.find(run);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void KeptSurvivors::add(const fs::path& run, const SurvivingHeads& heads) {
  known_[run] = heads;
  Json all = Json::object();
  for (const auto& [path, one] : known_)
    all[path.string()] = {{"built", one.built},
                          {"kept", one.kept},
                          {"rise", one.rise},
                          {"examples", one.examples},
                          {"ranked_on", split_name(Split::kTrain)}};
  replace_file(file_, json_text(all, 2) + "\n");
}

}  // namespace headlab
