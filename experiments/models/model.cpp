// Registry of models, and what all of them share.
#include "experiments/models/model.h"

#include <algorithm>

#include "core/config/registry.h"
#include "core/torch.h"

namespace headlab {
namespace {

Registry<ModelKind>& registry() {
  static Registry<ModelKind> kinds("model");
  return kinds;
}

}  // namespace

void register_model(ModelKind kind) { registry().add(std::move(kind)); }
std::vector<std::string> model_names() { return registry().names(); }
const ModelKind& model_kind(const std::string& name) { return registry().at(name); }
const KindRegistry& model_registry() { return registry(); }

std::vector<std::shared_ptr<AttentionHeads>*> all_heads(Model& model) {
  std::vector<std::shared_ptr<AttentionHeads>*> all;
  for (const auto& [site, layers] : model.sites())
    all.insert(all.end(), layers.begin(), layers.end());
  return all;
}

void Model::parameter_groups(ParameterGroups& groups) {
  for (auto* heads : all_heads(*this)) (*heads)->parameter_groups(groups);
}

std::set<std::string> Model::aux_names() {
  std::set<std::string> all;
  for (auto* heads : all_heads(*this))
    for (const auto& name : (*heads)->aux_names()) all.insert(name);
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
