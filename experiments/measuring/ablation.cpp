#include "experiments/measuring/ablation.h"

#include <algorithm>

#include "core/torch.h"
#include "experiments/inference/evaluate.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/models/site_probes.h"

namespace headlab {

const std::vector<std::string>& ablation_modes() {
  static const std::vector<std::string> names{"zero", "mean", "position_mean", "uniform"};
  return names;
}

AblationMode ablation_mode(const std::string& name) {
  if (name == "mean") return AblationMode::kMean;
  if (name == "position_mean") return AblationMode::kPositionMean;
  TORCH_CHECK(name == "zero" || name == "uniform", "no ablation mode is called ", name);
  return name == "zero" ? AblationMode::kZero : AblationMode::kUniform;
}

void ablate_heads(HeadContext& heads, const Tensor& gone, AblationMode mode, const Tensor& mean) {
  if (mode == AblationMode::kUniform) {
    heads.uniform = gone;
    return;
  }
  const auto stays = gone.logical_not();
  heads.gates = stays.to(mean.defined() ? mean.scalar_type() : at::kFloat).view({1, -1, 1});
  if (mode != AblationMode::kZero && mean.defined())
    heads.offset = mean.masked_fill(stays.view({-1, 1, 1}), 0);
}

namespace {

using LayerPlace = std::pair<std::string, int64_t>;  // site, layer
using HeadEdits = std::map<LayerPlace, Tensor>;      // bool [H], the heads that go
using MeanOutputs = std::map<LayerPlace, Tensor>;    // [H,1 or T,e], in original heads

// The sum of two, of which one may end before the other along a dimension, or be undefined.
Tensor joined(const Tensor& a, const Tensor& b, int64_t dim) {
  if (!a.defined()) return b;
  const bool longer = a.size(dim) >= b.size(dim);
  auto sum = longer ? a.clone() : b.clone();
  const auto& other = longer ? b : a;
  sum.narrow(dim, 0, other.size(dim)).add_(other);
  return sum;
}

bool takes_means(AblationMode mode) {
  return mode == AblationMode::kMean || mode == AblationMode::kPositionMean;
}

// Sums of what every head of a site says, a layer: over examples [own H,T,e], or for kMean over
// positions, too [own H,1,e]; and how many examples reach a position, [T].
struct OutputSums {
  AblationMode mode;
  std::map<int64_t, Tensor> sums = {};
  Tensor examples = {};
  void add(const SiteHeads& heads, const Batch& batch, const HeadProbe& probe) {
    for (const auto& [key, outputs] : probe.layer_outputs()) {
      auto said = outputs.edited.to(at::kDouble);  // [B,own H,T,e]
      const auto there = query_rows(heads.site(), batch, said.size(2));
      if (there.defined())
        said = said.masked_fill(there.logical_not().unsqueeze(1).unsqueeze(3), 0);
      if (key.layer == 0)
        examples = joined(examples,
                          there.defined() ? there.sum(0, /*keepdim=*/false, at::kDouble)
                                          : at::full({said.size(2)}, said.size(0), said.options()),
                          0);
      auto& total = sums[key.layer];
      const auto sum = said.sum(0);
      total = joined(total, mode == AblationMode::kMean ? sum.sum(1, /*keepdim=*/true) : sum, 1);
    }
  }
  Tensor mean(int64_t layer) const {  // shaped as the sum
    const auto& sum = sums.at(layer);
    if (mode == AblationMode::kMean) return sum / examples.sum();
    return sum / examples.clamp_min(1).unsqueeze(1);
  }
};

// Means of what every head says.
MeanOutputs mean_outputs(Model& model, const Sample& sample, AblationMode mode,
                         const Compute& compute) {
  const auto sites = site_heads(model);
  std::vector<OutputSums> sums(sites.size(), OutputSums{mode});
  SiteProbes probes(model, [](HeadProbe& probe) { probe.head_outputs = true; });
  for_each_batch(sample, compute.device, [&](const Batch& batch) {
    model.forward(batch, {.observer = &probes, .backend = compute.backend});
    for (size_t n = 0; n < sites.size(); ++n)
      sums[n].add(sites[n], batch, probes.at(sites[n].name()));
    probes.reset();
  });
  MeanOutputs means;
  for (size_t n = 0; n < sites.size(); ++n)
    for (const auto& [l, sum] : sums[n].sums) {
      const auto& layer = sites[n].layer(l);
      const auto ids = at::tensor(layer.head_ids(), at::kLong).to(compute.device);
      const auto own = sums[n].mean(l);
      means[{sites[n].name(), l}] =
          own.new_zeros({layer.heads(), own.size(1), own.size(2)}).index_copy(0, ids, own);
    }
  return means;
}

HeadEdits edits_of(const std::vector<HeadId>& heads, Model& model, const at::Device& device) {
  HeadEdits edits;
  for (const auto& id : heads) {
    const auto H = heads_at(model, id.site).layer(id.layer).heads();
    edits.try_emplace({id.site, id.layer}, at::zeros({H}, at::kBool)).first->second[id.head] = true;
  }
  for (auto& [place, gone] : edits) gone = gone.to(device);
  return edits;
}

// Where a pass begins to differ: each stack at the first of its layers that is touched, and all
// behind that stack anew.
std::map<std::string, int64_t> first_changed(Model& model, const HeadEdits& edits) {
  std::map<std::string, int64_t> first;
  bool found = false;
  for (const auto& [place, gone] : edits) {
    const auto up_to = model.up_to(place.first, place.second);
    const auto before = [](const auto& a, const auto& b) {  // fewer stacks done, or fewer blocks
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    };
    if (!found || before(up_to, first)) first = up_to;
    found = true;
  }
  return first;
}

Pass changed_pass(Model& model, const Batch& batch, const HiddenStates& known,
                  const HeadEdits& edits, AblationMode mode, const MeanOutputs& means,
                  Backend backend) {
  HiddenStates own;
  ModelContext ctx{.backend = backend, .hidden = &own, .known = &known};
  ctx.first_block = first_changed(model, edits);
  ctx.edit_heads = [&](const std::string& site, int64_t layer, HeadContext& heads) {
    const auto gone = edits.find({site, layer});
    if (gone == edits.end()) return;
    const auto found = means.find(gone->first);
    auto mean = found == means.end() ? Tensor() : found->second;
    if (mode == AblationMode::kPositionMean && mean.defined()) {
      const auto& states = known.at(heads_at(model, site).site().stack);
      mean = mean.narrow(1, 0, states.front().size(1));
    }
    ablate_heads(heads, gone->second, mode, mean);
  };
  const auto logits = model.forward(batch, ctx).logits;
  return {model.last_state(own), logits};
}

}  // namespace

std::vector<Ablated> ablate(Model& model, const Sample& sample,
                            const std::vector<std::vector<HeadId>>& sets, AblationMode mode,
                            const Compute& compute, const std::function<void()>& before_each) {
  at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  MeanOutputs means;
  if (takes_means(mode)) means = mean_outputs(model, sample, mode, compute);
  std::vector<HeadEdits> edits;
  for (const auto& heads : sets) edits.push_back(edits_of(heads, model, compute.device));
  std::vector<bool> measured;
  for (const auto& heads : sets) measured.push_back(can_be_ablated(model, heads, mode));
  std::vector<OutputChangeSums> sums(sets.size(), OutputChangeSums(sample.data->task()));
  for_each_batch(sample, compute.device, [&](const Batch& b) {
    HiddenStates hidden;
    const ModelContext ctx{.backend = compute.backend, .hidden = &hidden};
    const auto logits = model.forward(b, ctx).logits;
    const Pass full{model.last_state(hidden), logits};
    for (size_t n = 0; n < sets.size(); ++n) {
      if (before_each) before_each();
      if (!measured[n]) continue;
      sums[n].add(full,
                  edits[n].empty()
                      ? full
                      : changed_pass(model, b, hidden, edits[n], mode, means, compute.backend),
                  b);
    }
  });
  model.train(was_training);
  std::vector<std::vector<double>> rises;
  for (const auto& of_set : sums) rises.push_back(of_set.example_loss_changes());
  const auto significance = significance_of(rises, sample.data->task());
  std::vector<Ablated> results;
  for (size_t n = 0; n < sets.size(); ++n) {
    results.push_back({sets[n], sums[n].values(), significance[n]});
    if (measured[n]) continue;
    for (const auto& variable : output_change_variables(sample.data->task()))
      results.back().changes[variable.name] = kNaN;
  }
  return results;
}

bool can_be_ablated(Model& model, const std::vector<HeadId>& heads, AblationMode mode) {
  if (mode != AblationMode::kUniform) return true;
  return std::all_of(heads.begin(), heads.end(), [&](const HeadId& id) {
    return heads_at(model, id.site).layer(id.layer).traits().map == HeadMap::kTokens;
  });
}

Sample ranking_sample(const Sample& judging) {
  auto ranking = judging;
  if (judging.data->examples(Split::kTrain) > 0) ranking.split = Split::kTrain;
  return ranking;
}

std::vector<std::vector<HeadId>> single_heads(Model& model) {
  std::vector<std::vector<HeadId>> sets;
  for (const auto& id : heads_where(alive_heads(model))) sets.push_back({id});
  return sets;
}

std::vector<std::vector<HeadId>> head_pairs(Model& model) {
  const auto heads = heads_where(alive_heads(model));
  std::vector<std::vector<HeadId>> sets;
  for (size_t a = 0; a < heads.size(); ++a)
    for (size_t b = a + 1; b < heads.size(); ++b) sets.push_back({heads[a], heads[b]});
  return sets;
}

std::vector<std::vector<HeadId>> all_but_one(Model& model) {
  const auto heads = heads_where(alive_heads(model));
  std::vector<std::vector<HeadId>> sets;
  for (const auto& stays : heads) {
    sets.emplace_back();
    for (const auto& id : heads)
      if (id.site == stays.site && id.layer == stays.layer && id.head != stays.head)
        sets.back().push_back(id);
  }
  return sets;
}

}  // namespace headlab
