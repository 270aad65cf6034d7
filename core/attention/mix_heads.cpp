#include "core/attention/mix_heads.h"

#include "core/heads.h"
#include "core/torch.h"

namespace headlab {

Tensor mix_heads(const Tensor& a, const Tensor& weight, const Tensor& bias, const Tensor& alive) {
  auto w = weight.to(a.scalar_type());
  if (alive.defined()) w = w * alive.unsqueeze(1);
  const auto to_from = w.t().expand({a.size(0), w.size(1), w.size(0)});  // [B,H to,H from]
  const auto mixed = at::bmm(to_from, a.flatten(2)).view_as(a);          // [B,H,T,S]
  return bias.defined() ? mixed + bias.to(a.scalar_type()).view({-1, 1, 1}) : mixed;
}

void keep_mixing(Tensor& to, const Tensor& from, const std::vector<int64_t>& rows) {
  if (!from.defined()) return;
  keep_heads(to, from, rows, 0);
  keep_heads(to, to, rows, 1);
}

void report_off_diagonal(HeadProbe& probe, const std::string& name, const Tensor& weight,
                         const Tensor& alive) {
  auto mass = weight.detach().to(at::kDouble).abs();  // [H,H]
  if (alive.defined()) mass = mass * alive * alive.unsqueeze(1);
  probe.report(name, mass.sum() - mass.trace(), mass.sum());
}

}  // namespace headlab
