#include "core/restore_heads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/errors.h"
#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {

namespace {

std::string type_text(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", at::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

bool fits(const at::Tensor& tensor, const at::Tensor& target) {
  const auto from = tensor.scalar_type(), to = target.scalar_type();
  const bool widens = (from == at::kFloat && to == at::kDouble) ||
                      (from == at::kBFloat16 && (to == at::kFloat || to == at::kDouble));
  return tensor.sizes() == target.sizes() && (from == to || widens);
}

// What is saved of the layer at `path`.
NamedTensors saved_at(const std::string& path, const NamedTensors& tensors) {
  NamedTensors own;
  for (const auto& item : tensors)
    if (item.first.starts_with(path)) own.insert(item);
  return own;
}

}  // namespace

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

void load_into(torch::nn::Module& module, const NamedTensors& tensors, const std::string& path) {
  NamedTensors targets;
  for (const auto& [name, target] : module_tensors(module)) targets[path + name] = target;
  std::vector<std::string> problems;
  for (const auto& [name, target] : targets) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      problems.push_back(fmt::format("{}: is missing, should be {}", name, type_text(target)));
    } else if (!fits(found->second, target)) {
      problems.push_back(fmt::format("{}: is {}, should be {}", name, type_text(found->second),
                                     type_text(target)));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (targets.contains(name)) continue;
    problems.push_back(fmt::format("{}: {} has no place in the model", name, type_text(tensor)));
  }
  if (!problems.empty()) {
    throw RunError(
        fmt::format("the checkpoint does not fit the model:\n  {}", fmt::join(problems, "\n  ")));
  }
  const torch::NoGradGuard no_grad;
  for (auto [name, target] : targets) target.copy_(tensors.at(name));
}

std::shared_ptr<AttentionHeads> restore_heads(const KindBlock& block, const HeadShape& shape,
                                              const NamedTensors& tensors,
                                              const std::string& path) {
  const auto own = saved_at(path, tensors);
  auto heads = make_heads(block, shape);
  if (const auto found = own.find(path + "head_ids"); found != own.end()) {
    const auto kept = to_vector(found->second);
    std::vector<int64_t> gone;
    for (int64_t h = 0; h < heads->heads(); ++h)
      if (std::find(kept.begin(), kept.end(), h) == kept.end()) gone.push_back(h);
    heads->mask_heads(gone);
    heads = heads->slice();
  }
  std::optional<at::ScalarType> widest;
  for (const auto& [name, tensor] : own)
    if (tensor.is_floating_point())
      widest = widest ? at::promote_types(*widest, tensor.scalar_type()) : tensor.scalar_type();
  if (widest) heads->to(*widest);
  load_into(*heads, own, path);
  return heads;
}

}  // namespace headlab
