#include "experiments/models/gate_decisions.h"

#include "core/gate_target.h"
#include "core/torch.h"

namespace headlab {

std::optional<GateDecisions> gate_decisions(Model& model) {
  GateDecisions decisions;
  std::vector<Tensor> sums;
  bool any = false;
  for (auto* heads : all_heads(model)) {
    const auto gates = (*heads)->learned_gates();
    if (!gates.log_alpha.defined()) continue;
    any = true;
    decisions.heads += std::ssize(gates.heads);
    const auto undecided = (gates.clipped > 0) & (gates.clipped < 1);
    const auto open = gates.open.detach().sum();
    sums.push_back(at::stack({undecided.sum().to(open.scalar_type()),
                              (gates.test > 0).sum().to(open.scalar_type()), open}));
  }
  if (!any) return {};
  const auto total = at::stack(sums).sum(0).to(at::kCPU, at::kDouble);  // [3]
  decisions.undecided = static_cast<int64_t>(total[0].item<double>());
  decisions.alive = static_cast<int64_t>(total[1].item<double>());
  decisions.expected = total[2].item<double>();
  return decisions;
}

}  // namespace headlab
