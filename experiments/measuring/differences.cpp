#include "experiments/measuring/differences.h"

#include <algorithm>

namespace headlab {
namespace {

std::optional<double> tellable_of(const PairedDifference& difference, double effect) {
  const bool spreads = difference.deviation && *difference.deviation > 0;
  return spreads ? std::optional(effect * *difference.deviation) : std::nullopt;
}

}  // namespace

double strictest_alpha(size_t arms) {
  return kReportedBelow / static_cast<double>(std::max<size_t>(1, arms));
}

void compare_family(const ComparedMetric* baseline, const std::vector<ComparedMetric*>& family) {
  std::vector<std::optional<double>> p;
  for (auto* arm : family) {
    if (arm && baseline) arm->difference = paired_difference(arm->values, baseline->values);
    p.push_back(arm && arm->difference ? arm->difference->p : std::nullopt);
  }
  const auto corrected = holm(p);
  for (size_t a = 0; a < family.size(); ++a)
    if (corrected[a]) family[a]->corrected = corrected[a];
  if (!baseline || baseline->values.size() < kFewestSeeds) return;
  const double effect =
      tellable_effect(std::ssize(baseline->values), strictest_alpha(family.size()));
  for (auto* arm : family)
    if (arm && arm->difference && !arm->of_two_humps)
      arm->tellable = tellable_of(*arm->difference, effect);
}

}  // namespace headlab
