// Which parameters of a model an optimiser trains, and what they take.
#pragma once

#include <vector>

#include "core/heads.h"

namespace headlab {

bool contains(const std::vector<Tensor>& tensors, const Tensor& wanted);  // that very tensor
// `gates_only`: gates and multipliers train, all else stays.
bool is_trained(const Tensor& parameter, const ParameterGroups& special, bool gates_only);

double parameter_bytes(const torch::nn::Module& module);  // of all, trained or not

}  // namespace headlab
