// Format circuits-1: statistics of the weights of a stack of attention layers.
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/analysis/circuit_arrays.h"
#include "experiments/cases/layer_sizes.h"

namespace headlab {
namespace {

struct StackConfig : LayerSizes {
  int64_t layers = 0;

  void visit(Fields& f) override {
    LayerSizes::visit(f);
    f("layers", layers, "how many", between(1, 4096));
  }
  void check(const Complain& complain) const override {
    if (layers == 0) return complain("layers", "is missing");
    LayerSizes::check(complain);
  }
  HeadShape shape_of(int64_t layer) const {
    auto shape = LayerSizes::shape();
    shape.layer = layer, shape.layers = layers;
    return shape;
  }
};

// Biases have no part in circuits: the file need not have them.
std::shared_ptr<AttentionHeads> layer_of(const CaseFile& file, const StackConfig& config,
                                         int64_t layer) {
  auto heads = make_heads(config.attention, config.shape_of(layer));
  heads->to(at::kDouble);
  for (auto& parameter : heads->named_parameters()) {
    const auto name = fmt::format("w.{}.{}", layer, parameter.key());
    const auto given = parameter.key().ends_with(".bias") ? file.find(name) : file.at(name);
    if (!given.defined()) continue;
    if (given.sizes() != parameter.value().sizes())
      file.refuse(fmt::format("{} is {}, the layer wants {}", name, c10::str(given.sizes()),
                              c10::str(parameter.value().sizes())));
    parameter.value().copy_(given);
  }
  return heads;
}

NamedTensors circuits_of_file(const CaseFile& file) {
  StackConfig config;
  file.read(config);
  config.check_weights(file, config.layers);
  std::vector<std::shared_ptr<AttentionHeads>> stack;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    stack.push_back(layer_of(file, config, layer));
  Site site{.name = kSelfSite};
  for (auto& layer : stack) site.layers.push_back(&layer);
  const auto group =
      circuits(SiteHeads(site), file.find("in.embedding"), file.find("in.unembedding"));
  NamedTensors computed;
  for (const auto& array : group.arrays) {
    const auto extent = group.extent(array.dims);
    const std::vector<int64_t> shape(extent.begin(), extent.end());
    computed["out." + array.about.name] = at::tensor(array.values, at::kDouble).view(shape);
  }
  return computed;
}

const RegisterCase circuits_cases("circuits-1", circuits_of_file);

}  // namespace
}  // namespace headlab
