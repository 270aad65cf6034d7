#include "experiments/comparison/solved.h"

#include <algorithm>

namespace headlab {
namespace {

void correct_tests(const std::vector<SolvedArm*>& family,
                   std::optional<ComparedTest> SolvedArm::*test) {
  std::vector<std::optional<double>> p;
  for (const auto* arm : family)
    p.push_back(arm && (arm->*test) ? std::optional((arm->*test)->p) : std::nullopt);
  const auto corrected = holm(p);
  for (size_t a = 0; a < family.size(); ++a)
    if (corrected[a]) (family[a]->*test)->corrected = corrected[a];
}

}  // namespace

int64_t SolvedArm::count() const { return std::count(solved.begin(), solved.end(), true); }

int64_t SolvedArm::last_update() const {
  double last = 0;
  for (const auto& one : updates) last = std::max(last, one.time);
  return static_cast<int64_t>(last);
}

Lasted updates_until(const SolvedRule& rule, const std::vector<MetricsRow>& rows) {
  Lasted updates;
  for (const auto& row : rows) {
    updates.time = static_cast<double>(row.step);
    const auto value = row.values.find(rule.in_training);
    if (value == row.values.end() || !rule.met(value->second)) continue;
    updates.happened = true;
    break;
  }
  return updates;
}

void compare_solved(const SolvedArm* baseline, const std::vector<SolvedArm*>& family) {
  for (auto* arm : family) {
    if (!arm || !baseline) continue;
    const auto seeds = std::min(arm->solved.size(), baseline->solved.size());
    arm->share = {.p = fisher_p_value(arm->count(), std::ssize(arm->solved), baseline->count(),
                                      std::ssize(baseline->solved)),
                  .corrected = {},
                  .seeds = seeds};
    arm->sooner = {
        .p = log_rank(arm->updates, baseline->updates).p, .corrected = {}, .seeds = seeds};
  }
  correct_tests(family, &SolvedArm::share);
  correct_tests(family, &SolvedArm::sooner);
}

TellableCounts tellable_counts(int64_t count, int64_t n, double alpha) {
  TellableCounts told;
  for (int64_t one = 0; one <= n; ++one) {
    if (fisher_p_value(one, n, count, n) >= alpha) continue;
    if (one < count) told.fewer = one;
    if (one > count && !told.more) told.more = one;
  }
  return told;
}

}  // namespace headlab
