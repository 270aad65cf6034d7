#include "experiments/measuring/importance.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/torch.h"
#include "experiments/inference/evaluate.h"
#include "experiments/logs/labelled_arrays.h"
#include "experiments/measuring/paired.h"
#include "experiments/models/site_probes.h"

namespace headlab {

void ImportanceSums::add(const Tensor& c, const Tensor& length) {
  auto own = c.detach().to(at::kDouble);  // [B,H,T]
  double positions = static_cast<double>(own.size(0) * own.size(2));
  if (length.defined()) {
    const auto real = within_length(length, own.size(2), own.device());  // [B,T]
    own = own.masked_fill(real.logical_not().unsqueeze(1), 0);
    positions = length.sum().item<double>();
  }
  const auto of_example = own.sum(2);  // [B,H]
  const auto add_to = [](Tensor& sum, const Tensor& more) {
    sum = sum.defined() ? sum + more : more;
  };
  add_to(by_example_, of_example.abs().sum(0));
  add_to(example_squares_, of_example.square().sum(0));
  add_to(by_position_, own.abs().sum(at::IntArrayRef({0, 2})));
  add_to(by_batch_, of_example.sum(0).abs());
  examples_ += static_cast<double>(own.size(0));
  positions_ += positions;
}

Tensor ImportanceSums::paper_interval() const {
  if (examples_ < 2) return at::full_like(by_example_, kNaN);
  const auto variance =
      (example_squares_ / examples_ - reduced("paper").square()).clamp_min(0) / (examples_ - 1);
  return t_of_interval(static_cast<int64_t>(examples_)) * variance.sqrt();
}

const std::vector<std::string>& importance_reductions() {
  static const std::vector<std::string> names{"paper", "per_position", "batch"};
  return names;
}

const std::vector<std::string>& importance_arrays() {
  static const std::vector<std::string> names{"importance",
                                              "importance_interval",
                                              "importance_global",
                                              "importance_global_interval",
                                              "importance_paper",
                                              "importance_paper_interval",
                                              "importance_per_position",
                                              "importance_batch",
                                              "activation"};
  return names;
}

Tensor ImportanceSums::reduced(const std::string& reduction) const {
  if (reduction == "paper") return by_example_ / examples_;
  if (reduction == "per_position") return by_position_ / positions_;
  TORCH_CHECK(reduction == "batch", "no reduction is called ", reduction);
  return by_batch_ / positions_;
}

namespace {

Tensor norms_of_layers(const Tensor& importance) {
  return importance.square().nansum(1, true).sqrt() + 1e-20;  // [L,1]
}

}  // namespace

Tensor normalized_by_layer(const Tensor& importance) {
  return importance / norms_of_layers(importance);
}

SiteGrids normalized(const SiteGrids& importance, const std::string& norm) {
  return over_norms_of(importance, importance, norm);
}

SiteGrids over_norms_of(const SiteGrids& importance, const SiteGrids& numbers,
                        const std::string& norm) {
  if (norm == "none") return numbers;
  SiteGrids relative;
  double square = 0;
  for (const auto& [site, grid] : importance) {
    relative[site] = numbers.at(site) / norms_of_layers(grid);
    square += grid.square().nansum().item<double>();
  }
  if (norm == "layer") return relative;
  TORCH_CHECK(norm == "global", "no norm is called ", norm);
  for (const auto& [site, grid] : numbers) relative[site] = grid / (std::sqrt(square) + 1e-20);
  return relative;
}

const std::vector<std::string>& importance_norms() {
  static const std::vector<std::string> names{"layer", "global", "none"};
  return names;
}

namespace {

struct LayerSums {
  ImportanceSums importance;
  Tensor activation;  // [own H]
};

struct SiteSums {
  std::vector<LayerSums> layers;
  double positions = 0;
};

using SiteGates = std::map<std::string, std::vector<Tensor>>;  // [B,H,T] a layer

// The gradients of a batch's loss with respect to gates of 1 of every layer.
SiteGates gate_gradients(Model& model, const Task& task, const Batch& batch, Backend backend,
                         SiteProbes& probes) {
  SiteGates gates;
  std::vector<Tensor> all;
  for (const auto& site : site_heads(model)) {
    const Tensor& queries = batch.*site.site().queries;  // [B,T]
    for (int64_t l = 0; l < site.layers(); ++l) {
      const std::vector<int64_t> sizes{queries.size(0), site.layer(l).heads(), queries.size(1)};
      all.push_back(at::ones(sizes, queries.options().dtype(at::kFloat)).requires_grad_());
      gates[site.name()].push_back(all.back());
    }
  }
  ModelContext ctx{.observer = &probes, .backend = backend};
  ctx.edit_heads = [&](const std::string& site, int64_t layer, HeadContext& heads) {
    heads.gates = gates.at(site).at(layer);
  };
  const auto loss = task.importance(model.forward(batch, ctx).logits, batch);
  auto gradients =
      torch::autograd::grad({loss}, all, {}, std::nullopt, false, /*allow_unused=*/true);
  size_t n = 0;
  for (const auto& site : model.sites())
    for (auto& of_layer : gates[site.name]) of_layer = gradients[n++];
  return gates;
}

// One batch of one site: c [B,H,T] of each layer, and what its heads said.
void add_batch(SiteSums& sums, const SiteHeads& heads, const Batch& batch,
               const std::vector<Tensor>& c, const HeadProbe& probe) {
  const Tensor& queries = batch.*heads.site().queries;
  const Tensor& length = batch.*heads.site().query_length;
  const auto there = query_rows(heads.site(), batch, queries.size(1));
  sums.positions +=
      there.defined() ? there.sum().item<double>() : static_cast<double>(queries.numel());
  for (int64_t l = 0; l < heads.layers(); ++l) {
    const auto ids = heads.layer(l).head_ids();
    const auto rows = at::tensor(ids, at::kLong).to(queries.device());
    const std::vector<int64_t> sizes{queries.size(0), std::ssize(ids), queries.size(1)};
    sums.layers[l].importance.add(
        c[l].defined() ? c[l].index_select(1, rows) : at::zeros(sizes, queries.options()), length);
    const auto said = probe.layer_outputs().find(l);
    if (said == probe.layer_outputs().end()) continue;
    auto norms = said->second.edited.to(at::kDouble).norm(2, -1);  // [B,own H,T]
    if (there.defined()) norms = norms.masked_fill(there.logical_not().unsqueeze(1), 0);
    const auto size = norms.sum(at::IntArrayRef({0, 2}));
    auto& total = sums.layers[l].activation;
    total = total.defined() ? total + size : size;  // [own H]
  }
}

void put_grids(HeadImportance& result, const SiteHeads& heads, const SiteSums& sums) {
  const auto grid = [&](auto value_of) {
    std::vector<Tensor> values;
    for (int64_t l = 0; l < heads.layers(); ++l)
      values.push_back(value_of(sums.layers[l], std::ssize(heads.layer(l).head_ids())));
    return heads.by_own_head(values);
  };
  for (const auto& name : importance_reductions())
    result.raw[name][heads.name()] =
        grid([&](const LayerSums& s, int64_t) { return s.importance.reduced(name); });
  result.paper_interval[heads.name()] =
      grid([&](const LayerSums& s, int64_t) { return s.importance.paper_interval(); });
  result.activation[heads.name()] = grid([&](const LayerSums& s, int64_t own) {
    return s.activation.defined() ? s.activation / sums.positions : at::zeros({own});
  });
}

}  // namespace

HeadImportance measure_importance(Model& model, const Sample& sample, const Compute& compute) {
  at::AutoGradMode with_gradients(true);
  const bool was_training = model.is_training();
  model.eval();
  const auto sites = site_heads(model);
  std::map<std::string, SiteSums> sums;
  for (const auto& site : sites) sums[site.name()].layers.resize(site.layers());
  for_each_batch(sample, compute.device, [&](const Batch& b) {
    SiteProbes probes(model, [](HeadProbe& probe) { probe.head_outputs = true; });
    const auto c = gate_gradients(model, sample.data->task(), b, compute.backend, probes);
    for (const auto& site : sites)
      add_batch(sums[site.name()], site, b, c.at(site.name()), probes.at(site.name()));
  });
  model.train(was_training);
  HeadImportance result;
  for (const auto& site : sites) put_grids(result, site, sums[site.name()]);
  return result;
}

}  // namespace headlab
