// What the two halves of headlab._C share: how Python's words become settings, and how a call of
// Python becomes one of a layer.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/attention/positions/positions.h"
#include "core/head_kinds.h"
#include "core/observe/probe.h"

namespace headlab {

using NamedValues = std::vector<std::pair<std::string, Tensor>>;
using OptionalTensor = std::optional<Tensor>;

inline Tensor tensor_or_none(const OptionalTensor& t) { return t.value_or(Tensor()); }

// Parameters and buffers in the order in which the module registers them.
NamedValues parameters_of(const torch::nn::Module& module);
NamedValues buffers_of(const torch::nn::Module& module);

// What a pass told the probe of a layer, by the names of the log: [H], [H,H], [H,E] or a number,
// float64 on the CPU.
NamedValues values_of(const HeadProbe& probe, const AttentionHeads& heads, const MapKey& key);

// A hook of Python, called without the lock that its caller gave away.
std::function<Tensor(const Tensor&)> output_hook(const pybind11::object& hook);

void bind_heads(pybind11::module_& module);
void bind_models(pybind11::module_& module);
void bind_watch(pybind11::module_& module);

}  // namespace headlab
