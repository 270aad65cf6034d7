// Which learning rates are tried, one after the other, until the best lies between two that are
// worse. No torch in here, and nothing is trained.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace headlab {

// Rates are from * factor^k, k an integer; three at first, at most `most`.
struct RateGrid {
  double from = 0, factor = 2;
  int64_t most = 7;

  double rate(int64_t k) const;
};

// A rate that was tried: the loss of each choosing seed.
struct TriedRate {
  std::vector<std::optional<double>> losses;  // none: not trained yet
  bool lost = false;                          // a training diverged, or was given up

  bool is_complete() const;
  // Of the seeds that are trained; none where it is lost, or none is.
  std::optional<double> mean() const;
};
using TriedRates = std::map<int64_t, TriedRate>;  // by k

// What is to be trained next: k and the place of a choosing seed. Empty: the best rate is found, or
// the grid has no more.
//
// The first seed alone widens the search, one rate at a time, until the best has a neighbour on
// both sides. Then the best and its neighbours are trained with the other seeds, and the mean
// decides; where another rate is best then, its neighbours are asked for too. A rate that is lost
// is a neighbour like any other.
std::vector<std::pair<int64_t, size_t>> next_trainings(const RateGrid& grid,
                                                       const TriedRates& tried, size_t seeds);

// The lowest mean: of rates with all seeds, else of those with one. None: all are lost.
std::optional<int64_t> best_rate(const TriedRates& tried);
// The next lowest of those with as many seeds.
std::optional<int64_t> runner_up(const TriedRates& tried);
// Whether a neighbour of the best was never tried: a better rate may lie there.
bool is_at_edge(const TriedRates& tried);

}  // namespace headlab
