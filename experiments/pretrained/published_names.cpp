#include "experiments/pretrained/published_names.h"

#include <cmath>

#include "core/torch.h"
#include "experiments/models/stack_options.h"
#include "experiments/pretrained/foreign_weights.h"

namespace headlab {
namespace {

// A ViT's patches [D,C,P,P] are rows [D,C*P*P] here; what is the same for all examples has one
// dimension more.
void shape_as_theirs(std::vector<ForeignTensor>& rules, const DataShape& data) {
  for (auto& rule : rules) {
    auto& shape = rule.shape;
    if (rule.name.ends_with("patch_embeddings.projection.weight")) {
      const int64_t C = data.channels;
      const int64_t pixels = shape[1] / C;
      const auto P = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
      shape = {shape[0], C, P, P};
    } else if (rule.name.ends_with("cls_token")) {
      shape = {1, 1, shape.back()};
    } else if (rule.name == "vit.embeddings.position_embeddings" ||
               rule.name == "final_logits_bias") {
      shape.insert(shape.begin(), 1);
    }
  }
}

}  // namespace

std::string published_type(const std::string& kind, const ModelOptions& options) {
  if (kind == "encoder") return "bert";
  if (kind == "vit") return "vit";
  if (kind == "seq2seq") return "marian";
  const auto stack = options.stacks().at(0);
  return stack->norm == "layer" && stack->position->kind != "rope" ? "gpt2" : "llama";
}

std::vector<ForeignTensor> published_tensors(const std::string& kind, const ModelOptions& options,
                                             const DataShape& data, const NamedTensors& ours) {
  ForeignTensorList list(ours);
  hugging_face_family(published_type(kind, options)).list(list, options.layers);
  for (auto& rule : list.rules) rule.shape = shape_meant(rule, ours);
  shape_as_theirs(list.rules, data);
  return std::move(list.rules);
}

NamedTensors parameters_and_buffers(const Model& model) {
  NamedTensors all;
  for (const auto& item : model.named_parameters()) all[item.key()] = item.value();
  for (const auto& item : model.named_buffers()) all[item.key()] = item.value();
  return all;
}

}  // namespace headlab
