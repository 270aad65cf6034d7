#include "experiments/training/optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/trained_parameters.h"

namespace headlab {

AdamW::AdamW(const torch::nn::Module& model, const ParameterGroups& special,
             const Settings& settings)
    : settings_(settings) {
  for (const auto& item : model.named_parameters()) {
    const auto& p = item.value();
    if (!p.requires_grad()) continue;
    if (std::ranges::any_of(slots_, [&](const Slot& s) { return s.parameter.is_same(p); }))
      continue;  // registered twice
    Group group = p.dim() >= 2 ? kDecay : kNoDecay;
    if (contains(special.gates, p)) group = kGates;
    if (contains(special.multipliers, p)) group = kMultipliers;
    if (!is_trained(p, special, settings.gates_only)) {
      Tensor(p).set_requires_grad(false);
      continue;
    }
    // The kernel wants the number of steps in float32, on the parameter's device.
    slots_.push_back({item.key(), p, at::zeros_like(p), at::zeros_like(p),
                      at::zeros({}, p.options().dtype(at::kFloat)), group});
    slots_.back().exp_avg.set_requires_grad(false);
    slots_.back().exp_avg_sq.set_requires_grad(false);
  }
}

std::vector<Tensor> AdamW::parameters() const {
  std::vector<Tensor> parameters;
  for (const auto& slot : slots_) parameters.push_back(slot.parameter);
  return parameters;
}

std::vector<Tensor> AdamW::gradients() const {
  std::vector<Tensor> gradients;
  for (const auto& slot : slots_)
    if (slot.parameter.grad().defined()) gradients.push_back(slot.parameter.grad());
  return gradients;
}

Tensor AdamW::gradient_norm() const {
  const auto all = gradients();
  if (all.empty()) return at::zeros({});
  return at::stack(at::_foreach_norm(all, 2)).norm();
}

void AdamW::clip(const Tensor& norm, double limit) {
  const auto factor = (limit / (norm + 1e-6)).clamp_max(1);
  // Where reading it costs nothing, a factor of 1 is not worth a pass over the gradients.
  if (factor.is_cpu() && factor.item<double>() == 1) return;
  if (const auto all = gradients(); !all.empty()) at::_foreach_mul_(all, factor);
}

void AdamW::step_group(Group group, double lr) {
  std::vector<Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, steps;
  for (const auto& slot : slots_) {
    if (slot.group != group || !slot.parameter.grad().defined()) continue;
    parameters.push_back(slot.parameter);
    gradients.push_back(slot.parameter.grad());
    exp_avgs.push_back(slot.exp_avg);
    exp_avg_sqs.push_back(slot.exp_avg_sq);
    steps.push_back(slot.step);
  }
  if (parameters.empty()) return;
  at::_foreach_add_(steps, 1);
  at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, {}, steps, lr, settings_.beta1,
                    settings_.beta2, group == kDecay ? settings_.weight_decay : 0, settings_.eps,
                    /*amsgrad=*/false, /*maximize=*/group == kMultipliers);
}

void AdamW::step(double lr) {
  at::NoGradGuard no_grad;
  step_group(kDecay, lr);
  step_group(kNoDecay, lr);
  step_group(kGates, settings_.gate_lr);
  step_group(kMultipliers, settings_.multiplier_lr);
}

void AdamW::zero_grad() {
  for (auto& slot : slots_) slot.parameter.mutable_grad().reset();
}

NamedTensors AdamW::Slot::state() const {
  return {{"exp_avg." + name, exp_avg}, {"exp_avg_sq." + name, exp_avg_sq}, {"step." + name, step}};
}

NamedTensors AdamW::state() const {
  NamedTensors state;
  for (const auto& slot : slots_) state.merge(slot.state());
  return state;
}

void AdamW::load_state(const NamedTensors& state) {
  at::NoGradGuard no_grad;
  const auto fill = [&](const std::string& name, const Tensor& into) {
    const auto found = state.find(name);
    if (found == state.end()) throw RunError("the optimizer's state lacks " + name);
    if (found->second.sizes() != into.sizes())
      throw RunError(fmt::format("the optimizer's state has {} with shape {}, the model wants {}",
                                 name, c10::str(found->second.sizes()), c10::str(into.sizes())));
    into.copy_(found->second);
  };
  if (state.size() != 3 * slots_.size())
    throw RunError(fmt::format("the optimizer's state has {} tensors, the model wants {}",
                               state.size(), 3 * slots_.size()));
  for (const auto& slot : slots_)
    for (const auto& [name, tensor] : slot.state()) fill(name, tensor);
}

}  // namespace headlab
