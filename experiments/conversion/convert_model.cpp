#include "experiments/conversion/convert_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/torch.h"
#include "experiments/models/gate_target.h"
#include "experiments/models/stack.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/training/evaluate.h"

namespace headlab {
namespace {

constexpr const char* kConvertedSite = "self";

std::string prefix_of(const Model& model, int64_t layer) {
  return model.layer_path(kConvertedSite, layer) + ".";
}

// Takes the tensors of one layer out, under their names in it.
NamedTensors take_layer(NamedTensors& tensors, const std::string& prefix) {
  NamedTensors layer;
  for (auto node = tensors.lower_bound(prefix);
       node != tensors.end() && node->first.starts_with(prefix);) {
    layer[node->first.substr(prefix.size())] = node->second;
    node = tensors.erase(node);
  }
  return layer;
}

bool is_multiplier(const std::string& name) {
  return name.starts_with(std::string(kGateTarget) + ".");
}

// The experiment with other heads: `attention` is that of the first layer, `attention_at` names
// the layers that differ.
Experiment with_heads(Experiment experiment, int64_t heads, const std::vector<Conversion>& layers) {
  ConfigNode node = write_block(experiment);
  ConfigNode& model = *node.find("model");
  model.set("kv_heads", write_integer(layers.front().kv_heads));
  if (const auto& first = layers.front().attention) {
    ConfigNode others;
    for (size_t l = 1; l < layers.size(); ++l)
      if (!(*layers[l].attention == *first)) others.set(std::to_string(l), *layers[l].attention);
    model.set("attention", *first);
    model.set("attention_at", others);
  }
  if (layers.front().kv_heads == heads)
    std::erase_if(model.entries, [](const auto& entry) { return entry.first == "kv_heads"; });
  Experiment converted;
  read_config(converted, node);
  return converted;
}

// Stands in the place of a layer: runs its conversion beside it on the same input, and goes on with
// what the old layer says.
class Witness : public AttentionHeads {
 public:
  Witness(std::shared_ptr<AttentionHeads> before, std::shared_ptr<AttentionHeads> after)
      : AttentionHeads(before->shape(), before->traits()),
        before_(std::move(before)),
        after_(std::move(after)) {}

  const std::shared_ptr<AttentionHeads>& before() const { return before_; }
  double error() const { return sum_.error(); }

  struct Sum {
    double apart = 0, whole = 0;
    void add(const Tensor& before, const Tensor& after) {
      apart += (after - before).square().sum(at::kDouble).item<double>();
      whole += before.square().sum(at::kDouble).item<double>();
    }
    double error() const { return apart == 0 ? 0 : std::sqrt(apart / whole); }
  };

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    auto out = before_->forward(x, call);
    sum_.add(out.y, after_->forward(x, call).y);
    return out;
  }

  std::shared_ptr<AttentionHeads> before_, after_;
  Sum sum_;
};

}  // namespace

ConvertedModel convert_model(const OpenedRun& run,
                             const std::function<Conversion(const TrainedLayer&)>& convert,
                             const at::Device& device) {
  const auto* stack = dynamic_cast<const StackOptions*>(&run.experiment.model.options());
  if (!stack)
    throw ConfigError(fmt::format("'{}' models cannot be converted, only single stacks of layers",
                                  run.experiment.model.kind()));
  ConvertedModel made;
  NamedTensors tensors = module_tensors(*run.model);
  for (int64_t l = 0; l < stack->layers; ++l) {
    const auto prefix = prefix_of(*run.model, l);
    made.layers.push_back(convert({.name = fmt::format("layer {}", l),
                                   .attention = stack->attention_of(l),
                                   .shape = stack->shape(l, run.model->context()),
                                   .demands = stack->demands(l),
                                   .weights = take_layer(tensors, prefix)}));
    for (const auto& [name, tensor] : made.layers.back().weights) tensors[prefix + name] = tensor;
  }
  made.experiment = with_heads(run.experiment, stack->heads, made.layers);
  made.model = build_model(made.experiment, run.facts.shape, device);
  // Multipliers of a target start anew, where there is one now.
  std::erase_if(tensors, [](const auto& tensor) { return is_multiplier(tensor.first); });
  for (const auto& [name, tensor] : module_tensors(*made.model))
    if (is_multiplier(name)) tensors[name] = tensor;
  load_model(*made.model, tensors);
  made.model->eval();
  return made;
}

ConversionErrors compare_models(Model& before, Model& after, const DataSource& data, Split split,
                                int64_t batch, int64_t most_batches, const at::Device& device) {
  at::NoGradGuard no_grad;
  const auto layers = before.sites().at(kConvertedSite), others = after.sites().at(kConvertedSite);
  std::vector<std::shared_ptr<Witness>> witnesses;
  for (size_t l = 0; l < layers.size(); ++l) {
    witnesses.push_back(std::make_shared<Witness>(*layers[l], *others[l]));
    before.exchange(kConvertedSite, static_cast<int64_t>(l), witnesses.back());
  }
  Witness::Sum logits;
  for_each_batch(data, split, batch, most_batches, [&](const Batch& b) {
    const auto on_device = b.to(device);
    logits.add(before.forward(on_device, {}).logits, after.forward(on_device, {}).logits);
  });
  ConversionErrors errors{.outputs = {}, .logits = logits.error()};
  for (size_t l = 0; l < layers.size(); ++l) {
    errors.outputs.push_back(witnesses[l]->error());
    before.exchange(kConvertedSite, static_cast<int64_t>(l), witnesses[l]->before());
  }
  return errors;
}

}  // namespace headlab
