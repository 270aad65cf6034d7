// Paired differences of what is compared to its baseline: mean, interval, p, and Holm's correction
// over a family of them. Pure functions; no torch in here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headlab {

// Mean and deviation of what several runs gave.
struct Spread {
  double mean = 0;
  std::optional<double> deviation;  // of a sample; none of one value
  int64_t n = 0;
};
Spread spread_of(const std::vector<double>& values);  // at least one

// A difference is reported where its corrected p is below it.
inline constexpr double kReportedBelow = 0.05;
// A bootstrap of fewer pairs draws from too few to be trusted: with five, its 95 % interval leaves
// zero out in 17 of 100 cases without a difference.
inline constexpr size_t kPairsOfBootstrap = 10;

// I_x(a, b), the regularized incomplete beta function, for a, b > 0 and x in [0, 1], by its
// continued fraction (DLMF 8.17.22). std::invalid_argument elsewhere.
double incomplete_beta(double a, double b, double x);
// Two-sided p of Student's t with `freedom` > 0 degrees of freedom.
double t_p_value(double t, double freedom);
// The t > 0 whose two-sided p that is, 0 < p < 1.
double t_of_p(double p, double freedom);
// By which a 95 % interval of a mean of n > 1 numbers reaches over the mean, in standard errors.
double t_of_interval(int64_t n);

struct Interval {
  double low = 0, high = 0;
};
// Two-sided, of a t test that the mean is 0; 1 where all are 0. None of fewer than two, where one
// is not finite, and where all are equal and not 0, which no t can be formed of. `rounding`: what
// equals may lie apart.
std::optional<double> mean_p_value(const std::vector<double>& differences, double rounding = 0);
// Half of the 95 % interval of the mean, of t; none of one value.
std::optional<double> half_interval(const Spread& spread);
std::optional<Interval> t_interval(const Spread& spread);

struct PairedDifference {
  std::vector<double> differences;  // arm - baseline, a pair each
  double mean = 0;
  std::optional<double> deviation;    // of a sample, n - 1; none of one pair
  std::optional<Interval> interval;   // 95 %, of t; none of one pair
  std::optional<double> p;            // two-sided; none of one pair, and without_spread
  bool without_spread = false;        // all differences are equal and not 0: no t can be formed
  std::optional<Interval> bootstrap;  // 95 %, of the mean; from kPairsOfBootstrap on
};

// Of arm[i] with baseline[i]. Where all differences are 0, p is 1 and the interval [0, 0].
// std::invalid_argument where they are not as many, none, or not finite.
PairedDifference paired_difference(const std::vector<double>& arm,
                                   const std::vector<double>& baseline);

// Holm (1979): p values that hold for the whole family, in their order. One that is absent stays
// so, and counts in the family all the same: it was asked.
std::vector<std::optional<double>> holm(const std::vector<std::optional<double>>& p);

// 95 %, by percentiles of the means of 10,000 resamples, which are always the same ones.
Interval bootstrap_interval(const std::vector<double>& differences);

}  // namespace headlab
