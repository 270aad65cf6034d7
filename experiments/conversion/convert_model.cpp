#include "experiments/conversion/convert_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/torch.h"
#include "experiments/files/remove_key.h"
#include "experiments/inference/evaluate.h"
#include "experiments/models/finite_weights.h"
#include "experiments/models/gate_target.h"
#include "experiments/models/site_heads.h"
#include "experiments/models/stack_options.h"
#include "experiments/runs/checkpoint.h"

namespace headlab {
namespace {

bool is_multiplier(const std::string& name) {
  return name.starts_with(std::string(kGateTarget) + ".");
}

using SiteConversions = std::map<std::string, std::vector<Conversion>>;

// The heads of one layer of a site, as the config asks for them.
TrainedLayer asked_layer(const StackOptions& stack, const std::string& site, int64_t layer,
                         int64_t context) {
  if (site == stack.site())
    return {.name = fmt::format("layer {}", layer),
            .attention = stack.attention_of(layer),
            .shape = stack.shape(layer, context),
            .demands = stack.demands(layer),
            .weights = {}};
  return {.name = fmt::format("layer {} of {}", layer, site),
          .attention = *stack.cross(),
          .shape = stack.cross_shape(layer, context),
          .demands = {.cross = true},
          .weights = {}};
}

std::vector<std::string> sites_of(const StackOptions& stack) {
  std::vector<std::string> sites{stack.site()};
  if (stack.cross()) sites.emplace_back(kCrossSite);
  return sites;
}

// Other heads of a stack in its block of the config: `attention` is that of the first layer,
// `attention_at` names the layers that differ.
void set_heads(ConfigNode& block, const StackOptions& stack, const SiteConversions& conversions) {
  const auto& layers = conversions.at(stack.site());
  block.set("kv_heads", write_integer(layers.front().kv_heads));
  if (const auto& first = layers.front().attention) {
    ConfigNode others;
    for (size_t l = 1; l < layers.size(); ++l)
      if (!(*layers[l].attention == *first)) others.set(std::to_string(l), *layers[l].attention);
    block.set("attention", *first);
    block.set("attention_at", others);
  }
  if (stack.cross()) {
    const auto& cross = conversions.at(kCrossSite);
    for (const auto& layer : cross)
      if (layer.kv_heads != layers.front().kv_heads || layer.attention != cross.front().attention)
        throw ConfigError("a stack's cross-attention has one kind and the stack's kv_heads");
    if (cross.front().attention) block.set(kCrossSite, *cross.front().attention);
  }
  if (layers.front().kv_heads == stack.heads) remove_key(block, "kv_heads");
}

Experiment with_heads(Experiment experiment,
                      const std::vector<std::shared_ptr<const StackOptions>>& stacks,
                      const SiteConversions& conversions,
                      const std::function<void(ConfigNode& model)>& edit) {
  ConfigNode node = write_block(experiment);
  ConfigNode& model = *node.find("model");
  for (const auto& stack : stacks)
    set_heads(stack->name().empty() ? model : *model.find(stack->name()), *stack, conversions);
  if (edit) edit(model);
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
                             const at::Device& device,
                             const std::function<void(ConfigNode& model)>& edit) {
  const auto stacks = run.experiment.model.as<ModelOptions>().stacks();
  ConvertedModel made;
  NamedTensors tensors = module_tensors(*run.model);
  if (!not_finite(tensors).empty())
    throw NotFiniteError("weights that are not finite cannot be converted");
  for (const auto& stack : stacks)
    for (const auto& site : sites_of(*stack))
      for (int64_t l = 0; l < stack->layers; ++l) {
        const auto prefix = run.model->layer_path(site, l) + ".";
        auto layer = asked_layer(*stack, site, l, run.model->context());
        layer.weights = take_under(tensors, prefix);
        made.layers[site].push_back(convert(layer));
        for (const auto& [name, tensor] : made.layers[site].back().weights)
          tensors[prefix + name] = tensor;
      }
  made.experiment = with_heads(run.experiment, stacks, made.layers, edit);
  made.model = build_model(made.experiment, run.data_description.shape, device);
  // Multipliers of a target start anew, where there is one now.
  std::erase_if(tensors, [](const auto& tensor) { return is_multiplier(tensor.first); });
  for (const auto& [name, tensor] : module_tensors(*made.model))
    if (is_multiplier(name)) tensors[name] = tensor;
  load_model(*made.model, tensors);
  made.model->eval();
  return made;
}

ConversionErrors compare_models(Model& before, Model& after, const Sample& sample,
                                const Compute& compute) {
  at::NoGradGuard no_grad;
  std::map<std::string, std::vector<std::shared_ptr<Witness>>> witnesses;
  for (const auto& site : before.sites()) {
    const auto others = heads_at(after, site.name).site().layers;
    for (size_t l = 0; l < site.layers.size(); ++l) {
      witnesses[site.name].push_back(std::make_shared<Witness>(*site.layers[l], *others[l]));
      before.exchange(site.name, static_cast<int64_t>(l), witnesses[site.name].back());
    }
  }
  Witness::Sum logits;
  for_each_batch(sample, compute.device, [&](const Batch& b) {
    const ModelContext ctx{.backend = compute.backend};
    logits.add(before.forward(b, ctx).logits, after.forward(b, ctx).logits);
  });
  ConversionErrors errors{.outputs = {}, .logits = logits.error()};
  for (const auto& [site, layers] : witnesses)
    for (size_t l = 0; l < layers.size(); ++l) {
      errors.outputs[site].push_back(layers[l]->error());
      before.exchange(site, static_cast<int64_t>(l), layers[l]->before());
    }
  return errors;
}

}  // namespace headlab
