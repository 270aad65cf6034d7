#include "experiments/models/gate_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/torch.h"

namespace headlab {
namespace {

auto values_of(const GateTarget& t) {
  return std::tie(t.heads, t.sparsity, t.warmup, t.begin, t.start, t.scope);
}

}  // namespace

void check_gate_targets(const std::vector<LayerTarget>& layers, const Complain& complain) {
  const LayerTarget* last = nullptr;
  int64_t available = 0;
  for (const auto& layer : layers) {
    if (!layer.target) continue;
    if (last && values_of(*layer.target) != values_of(*last->target))
      return complain(layer.place + ".target",
                      "differs from layer to layer; a model has one target");
    last = &layer;
    available += layer.heads;
  }
  if (last && !last->target->by_layer() && last->target->heads.value_or(0) > available)
    complain(last->place + ".target.heads",
             fmt::format("must be at most {}, the heads of all layers with gates; is {}", available,
                         *last->target->heads));
}

GateTargetLossImpl::GateTargetLossImpl() {
  lambda1_ = register_parameter("lambda1", at::zeros({}));
  lambda2_ = register_parameter("lambda2", at::zeros({}));
}

std::vector<AuxLoss> GateTargetLossImpl::forward(
    const std::vector<std::shared_ptr<AttentionHeads>*>& layers, int64_t step) {
  std::vector<Tensor> open;
  const GateTarget* target = nullptr;
  for (const auto* heads : layers) {
    auto gates = (*heads)->learned_gates();
    if (!gates.target || gates.heads.empty()) continue;
    target = gates.target;
    open.push_back(std::move(gates.open));
  }
  if (!target) return {};
  const auto sparsity = expected_sparsity(open, target->by_layer());  // [1] or [L]
  std::vector<int64_t> counts;
  for (const auto& layer : open) counts.push_back(layer.numel());
  if (!target->by_layer()) counts = {std::accumulate(counts.begin(), counts.end(), int64_t{0})};
  std::vector<double> asked;
  for (const int64_t count : counts) asked.push_back(sparsity_at(*target, step, count));
  const auto like = sparsity.scalar_type();
  const auto loss = lagrangian(sparsity, at::tensor(asked, sparsity.options().requires_grad(false)),
                               lambda1_.to(like), lambda2_.to(like));
  return {{kGateTarget, loss, OverLayers::kSum}};
}

void GateTargetLossImpl::parameter_groups(ParameterGroups& groups) const {
  groups.multipliers.insert(groups.multipliers.end(), {lambda1_, lambda2_});
}

double sparsity_at(const GateTarget& target, int64_t step, int64_t count) {
  TORCH_CHECK(target.is_set() && count > 0,
              "a target needs heads or sparsity, and gates to act on");
  const double share =
      target.heads ? static_cast<double>(*target.heads) / static_cast<double>(count) : 1;
  const double end = target.sparsity ? *target.sparsity : std::max(0.0, 1 - share);
  return rising_sparsity(target.start, end, target.warmup, step - target.begin);
}

double rising_sparsity(double start, double end, int64_t warmup, int64_t step) {
  if (step >= warmup) return end;
  return (end - start) * static_cast<double>(std::max<int64_t>(step, 0)) /
             static_cast<double>(warmup) +
         start;
}

Tensor expected_sparsity(const std::vector<Tensor>& open, bool by_layer) {
  if (!by_layer) return 1 - at::cat(open).mean().unsqueeze(0);  // [1]
  std::vector<Tensor> layers;
  for (const auto& layer : open) layers.push_back(1 - layer.mean());
  return at::stack(layers);  // [L]
}

Tensor lagrangian(const Tensor& sparsity, const Tensor& target, const Tensor& lambda1,
                  const Tensor& lambda2) {
  const auto apart = sparsity - target;
  return (lambda1 * apart + lambda2 * apart.square()).mean();
}

Tensor largest_heads(const Tensor& log_alpha, int64_t count) {
  const auto there = log_alpha.isnan().logical_not();
  const int64_t most = there.sum().item<int64_t>();
  TORCH_CHECK(count >= 0 && count <= most, count, " heads asked of ", most, " with gates");
  const double lowest = -std::numeric_limits<double>::infinity();
  const auto flat = at::where(there, log_alpha, lowest).flatten();
  const auto rising = std::get<1>(flat.sort(/*stable=*/true, 0, /*descending=*/false));
  auto kept = at::ones(flat.sizes(), flat.options().dtype(at::kBool));
  kept.index_fill_(0, rising.narrow(0, 0, flat.numel() - count), false);
  return kept.view(log_alpha.sizes()) & there;
}

}  // namespace headlab
