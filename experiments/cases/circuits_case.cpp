// Format circuits-1: statistics of the weights of a stack of attention layers.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/head_kinds.h"
#include "core/torch.h"
#include "experiments/analysis/analysis_circuits.h"
#include "experiments/cases/case_file.h"

namespace headlab {
namespace {

struct StackConfig : Block {
  int64_t d_model = 0, heads = 0, layers = 0;
  std::optional<int64_t> head_dim, kv_heads;
  KindBlock attention{head_registry(), "mha"};

  void visit(Fields& f) override {
    f("d_model", d_model, "width of the layers", at_least(1));
    f("heads", heads, "query heads", at_least(1));
    f("head_dim", head_dim, "width of a head (default: d_model / heads)", at_least(1));
    f("kv_heads", kv_heads, "key/value heads (default: heads)", at_least(1));
    f("layers", layers, "how many", at_least(1));
    f("attention", attention, "kind of heads and its options");
  }
  void check(const Complain& complain) const override {
    if (d_model == 0) return complain("d_model", "is missing");
    if (heads == 0) return complain("heads", "is missing");
    if (layers == 0) return complain("layers", "is missing");
    check_heads(d_model, heads, head_dim, kv_heads, complain);
  }
  HeadShape shape(int64_t layer) const {
    HeadShape shape;
    shape.d_model = d_model;
    shape.heads = heads;
    shape.head_dim = head_dim.value_or(d_model / heads);
    shape.kv_heads = kv_heads.value_or(heads);
    shape.layer = layer, shape.layers = layers;
    return shape;
  }
};

// Biases have no part in circuits: the file need not have them.
std::shared_ptr<AttentionHeads> layer_of(const CaseFile& file, const StackConfig& config,
                                         int64_t layer) {
  auto heads = make_heads(config.attention, config.shape(layer));
  heads->to(at::kDouble);
  for (auto& parameter : heads->named_parameters()) {
    const auto name = fmt::format("w.{}.{}", layer, parameter.key());
    const auto given = parameter.key().ends_with(".bias") ? file.find(name) : file.at(name);
    if (!given.defined()) continue;
    if (given.sizes() != parameter.value().sizes())
      throw DataError(fmt::format("{}: {} is {}, the layer wants {}", file.name, name,
                                  c10::str(given.sizes()), c10::str(parameter.value().sizes())));
    parameter.value().copy_(given);
  }
  return heads;
}

NamedTensors circuits_of_file(const CaseFile& file) {
  StackConfig config;
  file.read(config);
  std::vector<std::shared_ptr<AttentionHeads>> stack;
  std::vector<const AttentionHeads*> layers;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    layers.push_back(stack.emplace_back(layer_of(file, config, layer)).get());
  const auto group = circuits(layers, file.find("in.embedding"), file.find("in.unembedding"));
  std::map<std::string, int64_t> sizes;
  for (const auto& axis : group.axes) sizes[axis.about.name] = axis.size;
  NamedTensors computed;
  for (const auto& array : group.arrays) {
    std::vector<int64_t> shape;
    for (const auto& dim : array.dims) shape.push_back(sizes.at(dim));
    computed["out." + array.about.name] = at::tensor(array.values, at::kDouble).view(shape);
  }
  return computed;
}

const RegisterCase circuits_cases("circuits-1", circuits_of_file);

}  // namespace
}  // namespace headlab
