#include "experiments/models/trained_parameters.h"

#include <algorithm>

#include "core/torch.h"

namespace headlab {

bool contains(const std::vector<Tensor>& tensors, const Tensor& wanted) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const Tensor& tensor) { return tensor.is_same(wanted); });
}

bool is_trained(const Tensor& parameter, const ParameterGroups& special, bool gates_only) {
  if (!parameter.requires_grad()) return false;
  return !gates_only || contains(special.gates, parameter) ||
         contains(special.multipliers, parameter);
}

double parameter_bytes(const torch::nn::Module& module) {
  double bytes = 0;
  for (const auto& p : module.parameters()) bytes += static_cast<double>(p.nbytes());
  return bytes;
}

}  // namespace headlab
