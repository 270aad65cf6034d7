#include "variants/nsa/statistics.h"

#include <string>

#include "core/torch.h"
#include "variants/families/chosen_blocks.h"

namespace headlab {
namespace {

constexpr const char* kGates[] = {"gate_compressed", "gate_selected", "gate_window"};

}  // namespace

std::vector<Statistic> nsa_statistics() {
  auto all = choice_statistics();
  for (const auto& of_window : row_statistics_of_map(1, "window"))
    if (of_window.of_rows != std::string("next_token"))  // causal heads have none
      all.push_back(of_window);
  for (const char* name : kGates)
    all.push_back(head_statistic(name, "1", "gate of a branch", "mean over rows of g"));
  all.push_back(head_statistic("gate_entropy", "nat", "entropy of the gates' shares",
                               "mean over rows of -sum p ln p, p = g / sum g"));
  return all;
}

void report_gates(HeadObserver& observer, const Tensor& g, const Tensor& counted) {
  for (int64_t n = 0; n < 3; ++n) report_rows(observer, kGates[n], g.select(3, n), counted);
  const auto share = g / g.sum(-1, /*keepdim=*/true).clamp_min(1e-30);
  report_rows(observer, "gate_entropy", -at::xlogy(share, share).sum(-1), counted);
}

}  // namespace headlab
