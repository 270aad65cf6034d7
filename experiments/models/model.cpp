// Registry of models, and what all of them share.
#include "experiments/models/model.h"

#include <algorithm>

#include "core/config/registry.h"
#include "core/torch.h"
#include "experiments/models/gate_target.h"
#include "experiments/models/stack.h"

namespace headlab {
namespace {

Registry<ModelKind>& registry() {
  static Registry<ModelKind> kinds("model");
  return kinds;
}

}  // namespace

void register_model(ModelKind kind) { registry().add(std::move(kind)); }
const ModelKind& model_kind(const std::string& name) { return registry().at(name); }
const KindRegistry& model_registry() { return registry(); }

std::vector<std::shared_ptr<AttentionHeads>*> all_heads(Model& model) {
  std::vector<std::shared_ptr<AttentionHeads>*> all;
  for (const auto& site : model.sites())
    all.insert(all.end(), site.layers.begin(), site.layers.end());
  return all;
}

Model::Model() = default;
Model::~Model() = default;

ModelOutput Model::forward(const Batch& batch, const ModelContext& ctx) {
  ModelOutput out;
  out.logits = compute(batch, ctx, out.aux);
  out.aux = combine_aux(out.aux);
  if (gate_target_ && is_training())
    for (auto& loss : gate_target_->forward(all_heads(*this), ctx.update)) out.aux.push_back(loss);
  return out;
}

std::optional<int64_t> Model::longest() {
  std::optional<int64_t> least;
  const auto at_most = [&](std::optional<int64_t> length) {
    if (length) least = std::min(*length, least.value_or(*length));
  };
  for (const auto& stack : stacks_) at_most(stack->learned_places());
  for (const auto* heads : all_heads(*this)) at_most((*heads)->longest());
  return least;
}

Stack& Model::add_stack(torch::nn::Module& embed, const StackOptions& options,
                        const StackInputs& inputs, int64_t context) {
  const auto parts = named_children();
  auto& holder = options.name().empty() ? *this : *parts[options.name()];
  stacks_.push_back(std::make_unique<Stack>(holder, embed, options, inputs, context));
  return *stacks_.back();
}

void Model::aim_at_heads() {
  const auto layers = all_heads(*this);
  if (std::any_of(layers.begin(), layers.end(),
                  [](auto* heads) { return (*heads)->learned_gates().target; }))
    gate_target_ = register_module(kGateTarget, GateTargetLoss().ptr());
}

Stack& Model::stack_of(const std::string& site) const {
  for (const auto& stack : stacks_)
    for (const auto& has : stack->sites())
      if (has.name == site) return *stack;
  TORCH_CHECK(false, "the model has no site '", site, "'");
}

std::vector<Site> Model::sites() {
  std::vector<Site> all;
  for (const auto& stack : stacks_)
    for (auto& site : stack->sites()) all.push_back(std::move(site));
  return all;
}

std::string Model::layer_path(const std::string& site, int64_t layer) const {
  return stack_of(site).layer_path(site, layer);
}

void Model::exchange(const std::string& site, int64_t layer,
                     std::shared_ptr<AttentionHeads> heads) {
  stack_of(site).exchange(site, layer, std::move(heads));
}

std::map<std::string, int64_t> Model::up_to(const std::string& site, int64_t layer) const {
  const auto& own = stack_of(site);
  std::map<std::string, int64_t> first;
  for (const auto& stack : stacks_) {
    if (stack.get() == &own) {
      first[own.name()] = layer;
      break;
    }
    first[stack->name()] = std::ssize(stack->blocks());
  }
  return first;
}

const Tensor& Model::last_state(const HiddenStates& hidden) const {
  return hidden.at(stacks_.back()->name()).back();
}

void Model::parameter_groups(ParameterGroups& groups) {
  for (auto* heads : all_heads(*this)) (*heads)->parameter_groups(groups);
  if (gate_target_) gate_target_->parameter_groups(groups);
}

std::set<std::string> Model::aux_names() {
  std::set<std::string> all;
  for (auto* heads : all_heads(*this))
    for (const auto& name : (*heads)->aux_names()) all.insert(name);
  if (gate_target_) all.insert(kGateTarget);
  return all;
}

int64_t parameter_count(const Model& model) {
  int64_t count = 0;
  for (const auto& p : model.parameters()) count += p.numel();
  return count;
}

std::vector<AuxLoss> combine_aux(const std::vector<AuxLoss>& losses) {
  std::vector<AuxLoss> combined;
  std::vector<int64_t> layers;
  for (const auto& loss : losses) {
    auto same = std::find_if(combined.begin(), combined.end(),
                             [&](const AuxLoss& c) { return c.name == loss.name; });
    if (same == combined.end()) {
      combined.push_back(loss);
      layers.push_back(1);
    } else {
      same->value = same->value + loss.value;
      ++layers[same - combined.begin()];
    }
  }
  for (size_t i = 0; i < combined.size(); ++i)
    if (combined[i].over == OverLayers::kMean)
      combined[i].value = combined[i].value / static_cast<double>(layers[i]);
  return combined;
}

}  // namespace headlab
