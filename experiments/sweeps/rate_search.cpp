#include "experiments/sweeps/rate_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

namespace headlab {
namespace {

// By rising mean: those with all seeds where there are any.
std::vector<int64_t> ranked_rates(const TriedRates& tried) {
  const bool any_complete = std::any_of(tried.begin(), tried.end(), [](const auto& one) {
    return one.second.is_complete() && one.second.mean();
  });
  std::vector<int64_t> ranked;
  for (const auto& [k, rate] : tried)
    if (rate.mean() && (!any_complete || rate.is_complete())) ranked.push_back(k);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](int64_t a, int64_t b) { return *tried.at(a).mean() < *tried.at(b).mean(); });
  return ranked;
}

}  // namespace

// Twelve digits: 1e-3 doubled is 2e-3, as one writes it.
double RateGrid::rate(int64_t k) const {
  return std::stod(fmt::format("{:.12g}", from * std::pow(factor, static_cast<double>(k))));
}

bool TriedRate::is_complete() const {
  return lost || std::all_of(losses.begin(), losses.end(),
                             [](const auto& loss) { return loss.has_value(); });
}

std::optional<double> TriedRate::mean() const {
  double sum = 0;
  int64_t count = 0;
  for (const auto& loss : losses)
    if (loss) sum += *loss, ++count;
  if (lost || count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::optional<int64_t> best_rate(const TriedRates& tried) {
  const auto ranked = ranked_rates(tried);
  return ranked.empty() ? std::nullopt : std::optional(ranked.front());
}

std::optional<int64_t> runner_up(const TriedRates& tried) {
  const auto ranked = ranked_rates(tried);
  return ranked.size() < 2 ? std::nullopt : std::optional(ranked[1]);
}

bool is_at_edge(const TriedRates& tried) {
  const auto best = best_rate(tried);
  return best && !(tried.count(*best - 1) && tried.count(*best + 1));
}

std::vector<std::pair<int64_t, size_t>> next_trainings(const RateGrid& grid,
                                                       const TriedRates& tried, size_t seeds) {
  if (tried.empty()) return {{0, 0}, {-1, 0}, {1, 0}};
  auto room = grid.most - std::ssize(tried);
  std::vector<std::pair<int64_t, size_t>> next;
  const auto widen = [&](int64_t k) {
    if (room > 0 && !tried.count(k)) next.emplace_back(k, 0), --room;
  };
  const auto best = best_rate(tried);
  if (!best) {  // all are lost: they were too high
    widen(tried.begin()->first - 1);
    return next;
  }
  widen(*best - 1), widen(*best + 1);
  if (!next.empty()) return next;
  for (const int64_t k : {*best, *best - 1, *best + 1}) {
    const auto found = tried.find(k);
    if (found == tried.end() || found->second.is_complete()) continue;
    for (size_t seed = 0; seed < seeds; ++seed)
      if (!found->second.losses[seed]) next.emplace_back(k, seed);
  }
  return next;
}

}  // namespace headlab
