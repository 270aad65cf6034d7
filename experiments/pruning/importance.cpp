#include "experiments/pruning/importance.h"

#include <torch/csrc/autograd/autograd.h>

#include "core/observe/probe.h"
#include "core/torch.h"
#include "experiments/training/evaluate.h"

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
  add_to(by_position_, own.abs().sum(at::IntArrayRef({0, 2})));
  add_to(by_batch_, of_example.sum(0).abs());
  examples_ += static_cast<double>(own.size(0));
  positions_ += positions;
}

Tensor ImportanceSums::paper() const { return by_example_ / examples_; }
Tensor ImportanceSums::per_position() const { return by_position_ / positions_; }
Tensor ImportanceSums::batch() const { return by_batch_ / positions_; }

const std::vector<std::string>& importance_reductions() {
  static const std::vector<std::string> names{"paper", "per_position", "batch"};
  return names;
}

const std::vector<std::string>& importance_arrays() {
  static const std::vector<std::string> names{"importance",       "importance_global",
                                              "importance_paper", "importance_per_position",
                                              "importance_batch", "activation"};
  return names;
}

Tensor ImportanceSums::reduced(const std::string& reduction) const {
  if (reduction == "paper") return paper();
  if (reduction == "per_position") return per_position();
  TORCH_CHECK(reduction == "batch", "no reduction is called ", reduction);
  return batch();
}

Tensor normalized_by_layer(const Tensor& importance) {
  const auto norms = importance.square().nansum(1, true).sqrt();  // [L,1]
  return importance / (norms + 1e-20);
}

Tensor normalized_globally(const Tensor& importance) {
  return importance / (importance.square().nansum().sqrt() + 1e-20);
}

namespace {

struct LayerSums {
  ImportanceSums importance;
  Tensor activation;  // [own H]
};

// The gradients of a batch's loss with respect to gates of 1 of every layer: [B,H,T] each.
std::vector<Tensor> gate_gradients(Model& model, const Task& task, const Batch& batch,
                                   HeadProbe& probe) {
  const auto layers = attention_layers(model);
  std::vector<Tensor> gates;
  for (auto* heads : layers)
    gates.push_back(at::ones({batch.examples(), (*heads)->heads(), batch.ids.size(1)},
                             batch.ids.options().dtype(at::kFloat))
                        .requires_grad_());
  ModelContext ctx;
  ctx.observer = &probe;
  ctx.edit_heads = [&](const std::string&, int64_t layer, HeadContext& heads) {
    heads.gates = gates[layer];
  };
  const auto loss = task.loss(model.forward(batch, ctx).logits, batch);
  return torch::autograd::grad({loss}, gates, {}, std::nullopt, false, /*allow_unused=*/true);
}

}  // namespace

HeadImportance measure_importance(Model& model, const DataSource& data, Split split, int64_t batch,
                                  int64_t most_batches, const at::Device& device) {
  at::AutoGradMode with_gradients(true);
  const bool was_training = model.is_training();
  model.eval();
  const auto layers = attention_layers(model);
  std::vector<LayerSums> sums(layers.size());
  double positions = 0;
  for_each_batch(data, split, batch, most_batches, [&](const Batch& on_host) {
    const auto b = on_host.to(device);
    HeadProbe probe;
    probe.head_outputs = true;
    const auto gradients = gate_gradients(model, data.task(), b, probe);
    positions += static_cast<double>(b.tokens());
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto ids = (*layers[l])->head_ids();
      const auto rows = at::tensor(ids, at::kLong).to(device);
      const auto& c = gradients[l];
      sums[l].importance.add(c.defined()
                                 ? c.index_select(1, rows)
                                 : at::zeros({b.examples(), std::ssize(ids), b.ids.size(1)}));
      const auto said = probe.layer_outputs().find(static_cast<int64_t>(l));
      if (said == probe.layer_outputs().end()) continue;
      const auto size =
          said->second.edited.to(at::kDouble).norm(2, -1).sum(at::IntArrayRef({0, 2}));
      auto& total = sums[l].activation;
      total = total.defined() ? total + size : size;  // [own H]
    }
  });
  model.train(was_training);
  HeadImportance result;
  const auto grid = [&](auto value_of) {
    std::vector<Tensor> values;
    for (size_t l = 0; l < layers.size(); ++l)
      values.push_back(value_of(sums[l], std::ssize((*layers[l])->head_ids())));
    return head_grid(model, values);
  };
  for (const auto& name : importance_reductions())
    result.raw[name] =
        grid([&](const LayerSums& s, int64_t) { return s.importance.reduced(name); });
  result.activation = grid([&](const LayerSums& s, int64_t own) {
    return s.activation.defined() ? s.activation / positions : at::zeros({own});
  });
  return result;
}

}  // namespace headlab
