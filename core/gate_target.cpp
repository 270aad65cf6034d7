#include "core/gate_target.h"

#include <algorithm>
#include <cmath>

#include "core/torch.h"

namespace headlab {

Tensor stretched_gates(const Tensor& logit, const HardConcrete& gate) {
  return (at::sigmoid(logit) * (gate.zeta - gate.gamma) + gate.gamma).clamp(0, 1);
}

Tensor p_open(const Tensor& log_alpha, const HardConcrete& gate) {
  return at::sigmoid(log_alpha - gate.temperature * std::log(-gate.gamma / gate.zeta))
      .clamp(gate.eps, 1 - gate.eps);
}

Tensor likelier_open(const Tensor& log_alpha, const HardConcrete& gate) {
  const auto open =
      at::sigmoid(log_alpha - gate.temperature * std::log((1 - gate.gamma) / (gate.zeta - 1)));
  const auto shut =
      1 - at::sigmoid(log_alpha - gate.temperature * std::log(-gate.gamma / gate.zeta));
  return open > shut;
}

void GateTarget::visit(Fields& f) {
  f("heads", heads, "heads to end with, in the whole model or in each layer (see scope)",
    at_least(1));
  f("sparsity", sparsity, "or the share of heads to shut", from_below(0, 1));
  f("warmup", warmup, "updates over which the target rises", at_least(0));
  f("begin", begin, "update from which it rises", at_least(0));
  f("start", start, "share of shut heads that it rises from", from_below(0, 1));
  f("scope", scope, "one target for all layers together, or the same for each",
    one_of({"model", "layer"}));
}

void GateTarget::check(const Complain& complain) const {
  const GateTarget usual;
  const bool touched = warmup != usual.warmup || begin != usual.begin || start != usual.start ||
                       scope != usual.scope;
  if (heads && sparsity) complain("sparsity", "is another way to say heads; give one of the two");
  if (touched && !is_set()) complain("", "needs heads or sparsity");
}

double GateTarget::sparsity_at(int64_t step, int64_t count) const {
  TORCH_CHECK(is_set() && count > 0, "a target needs heads or sparsity, and gates to act on");
  const double share = heads ? static_cast<double>(*heads) / static_cast<double>(count) : 1;
  const double end = sparsity ? *sparsity : std::max(0.0, 1 - share);
  return rising_sparsity(start, end, warmup, step - begin);
}

double rising_sparsity(double start, double end, int64_t warmup, int64_t step) {
  if (step >= warmup) return end;
  return (end - start) * static_cast<double>(std::max<int64_t>(step, 0)) /
             static_cast<double>(warmup) +
         start;
}

}  // namespace headlab
