#include "experiments/pruning/ablation.h"

#include <algorithm>

#include "core/observe/probe.h"
#include "core/torch.h"
#include "experiments/training/evaluate.h"

namespace headlab {

const std::vector<std::string>& ablation_modes() {
  static const std::vector<std::string> names{"zero", "mean", "uniform"};
  return names;
}

AblationMode ablation_mode(const std::string& name) {
  if (name == "mean") return AblationMode::kMean;
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
  if (mode == AblationMode::kMean && mean.defined())
    heads.offset = mean.masked_fill(stays.view({-1, 1, 1}), 0);
}

namespace {

using HeadEdits = std::map<int64_t, Tensor>;  // by layer: bool [H], the heads that go

// Mean over all positions of what every head says, in original heads: [H,1,e] a layer.
std::vector<Tensor> mean_outputs(Model& model, const DataSource& data, const AblationSettings& s,
                                 const at::Device& device) {
  const auto layers = attention_layers(model);
  std::vector<Tensor> means(layers.size());
  double positions = 0;
  for_each_batch(data, s.split, s.batch, s.most_batches, [&](const Batch& b) {
    HeadProbe probe;
    probe.head_outputs = true;
    ModelContext ctx;
    ctx.observer = &probe;
    model.forward(b.to(device), ctx);
    positions += static_cast<double>(b.tokens());
    for (const auto& [key, outputs] : probe.layer_outputs()) {
      const auto sum = outputs.edited.to(at::kDouble).sum(at::IntArrayRef({0, 2}));  // [own H,e]
      auto& mean = means[key.layer];
      mean = mean.defined() ? mean + sum : sum;
    }
  });
  for (size_t l = 0; l < layers.size(); ++l) {
    if (!means[l].defined()) continue;
    const auto ids = at::tensor((*layers[l])->head_ids(), at::kLong).to(device);
    means[l] = means[l]
                   .new_zeros({(*layers[l])->heads(), means[l].size(1)})
                   .index_copy(0, ids, means[l] / positions)
                   .unsqueeze(1);
  }
  return means;
}

HeadEdits edits_of(const std::vector<HeadId>& heads, Model& model, const at::Device& device) {
  const auto layers = attention_layers(model);
  HeadEdits edits;
  for (const auto& id : heads) {
    const auto H = (*layers.at(id.layer))->heads();
    edits.try_emplace(id.layer, at::zeros({H}, at::kBool)).first->second[id.head] = true;
  }
  for (auto& [layer, gone] : edits) gone = gone.to(device);
  return edits;
}

Pass changed_pass(Model& model, const Batch& batch, const std::vector<Tensor>& hidden,
                  const HeadEdits& edits, AblationMode mode, const std::vector<Tensor>& means) {
  std::vector<Tensor> own;
  ModelContext ctx;
  ctx.hidden = &own;
  ctx.first_block = edits.begin()->first;
  ctx.input = hidden[ctx.first_block];
  ctx.edit_heads = [&](const std::string&, int64_t layer, HeadContext& heads) {
    if (const auto gone = edits.find(layer); gone != edits.end())
      ablate_heads(heads, gone->second, mode, means[layer]);
  };
  const auto logits = model.forward(batch, ctx).logits;
  return {own.back(), logits};
}

}  // namespace

std::vector<Ablated> ablate(Model& model, const DataSource& data,
                            const std::vector<std::vector<HeadId>>& sets, const AblationSettings& s,
                            const at::Device& device, const std::function<void()>& before_each) {
  at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  std::vector<Tensor> means(attention_layers(model).size());
  if (s.mode == AblationMode::kMean) means = mean_outputs(model, data, s, device);
  std::vector<HeadEdits> edits;
  for (const auto& heads : sets) edits.push_back(edits_of(heads, model, device));
  std::vector<DeltaSums> sums(sets.size());
  for_each_batch(data, s.split, s.batch, s.most_batches, [&](const Batch& on_host) {
    const auto b = on_host.to(device);
    std::vector<Tensor> hidden;
    ModelContext ctx;
    ctx.hidden = &hidden;
    const auto logits = model.forward(b, ctx).logits;
    const Pass full{hidden.back(), logits};
    for (size_t n = 0; n < sets.size(); ++n) {
      if (before_each) before_each();
      sums[n].add(full,
                  edits[n].empty() ? full : changed_pass(model, b, hidden, edits[n], s.mode, means),
                  b.targets);
    }
  });
  model.train(was_training);
  std::vector<Ablated> results;
  Tensor draws;  // the same for every set: they are compared
  for (size_t n = 0; n < sets.size(); ++n) {
    results.push_back({sets[n], sums[n].values()});
    const auto& examples = sums[n].example_deltas();
    if (examples.empty()) continue;
    if (!draws.defined() || draws.size(1) != std::ssize(examples))
      draws = draw_resamples(s.resamples, std::ssize(examples), s.seed);
    results.back().deltas["p_value"] = bootstrap(at::tensor(examples, at::kDouble), draws).p;
  }
  return results;
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
      if (id.layer == stays.layer && id.head != stays.head) sets.back().push_back(id);
  }
  return sets;
}

}  // namespace headlab
