#include "core/gate_target.h"

#include <cmath>

#include "core/torch.h"

namespace headlab {

Tensor p_open(const Tensor& log_alpha, const HardConcrete& gate) {
  return at::sigmoid(log_alpha - gate.temperature * std::log(-gate.gamma / gate.zeta))
      .clamp(gate.eps, 1 - gate.eps);
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

}  // namespace headlab
