#include "core/attention/compose_statistics.h"

#include "core/torch.h"

namespace headlab {

const std::vector<Statistic>& composed_statistics() {
  static const std::vector<Statistic> table{
      {.name = "composed_row_sum",
       .long_name = "sum of the composed weights of a row",
       .formula = "mean over rows of sum_j a', a' the weights that meet the values"},
      {.name = "composed_negative_mass",
       .long_name = "negative part of the composed weights of a row",
       .formula = "mean over rows of sum_j max(-a', 0)"},
      {.name = "composed_first_token",
       .long_name = "composed weight on the first token",
       .formula = "mean over rows of a'[i,0]",
       .needs_places = true}};
  return table;
}

Statistic off_diagonal_statistic(const char* name, const char* long_name) {
  return layer_statistic(name, "1", long_name, "sum_{h != g} |w[h,g]| / sum |w[h,g]|");
}

void report_off_diagonal(HeadObserver& observer, const std::string& name, const Tensor& weight,
                         const Tensor& alive) {
  auto mass = weight.detach().to(at::kDouble).abs();  // [H,H]
  if (alive.defined()) mass = mass * alive * alive.unsqueeze(1);
  observer.report(name, mass.sum() - mass.trace(), mass.sum());
}

}  // namespace headlab
