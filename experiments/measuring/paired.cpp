#include "experiments/measuring/paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

namespace headlab {
namespace {

constexpr double kInterval = 0.05;  // p of what lies outside

// The continued fraction of the incomplete beta function, by the modified algorithm of Lentz.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto away_from_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / away_from_zero(1 - (a + b) * x / (a + 1)), fraction = d;
  const auto step = [&](double coefficient) {
    d = 1 / away_from_zero(1 + coefficient * d);
    c = away_from_zero(1 + coefficient / c);
    fraction *= c * d;
    return c * d;
  };
  for (int n = 1; n <= 1000; ++n) {
    step(n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n)));
    const double change = step(-(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1)));
    if (std::abs(change - 1) < 4 * std::numeric_limits<double>::epsilon()) break;
  }
  return fraction;
}

bool all_finite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

// Differences of numbers that are equal but for rounding are equal.
bool all_equal(const std::vector<double>& differences, const std::vector<double>& arm,
               const std::vector<double>& baseline) {
  double largest = 0;
  for (const auto* values : {&arm, &baseline})
    for (const double value : *values) largest = std::max(largest, std::abs(value));
  const auto [least, most] = std::minmax_element(differences.begin(), differences.end());
  return *most - *least <= 8 * std::numeric_limits<double>::epsilon() * largest;
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  spread.n = static_cast<int64_t>(values.size());
  const auto n = static_cast<double>(values.size());
  for (const double value : values) spread.mean += (value - values[0]) / n;  // of equals, that one
  spread.mean += values[0];
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (n - 1));
  return spread;
}

double incomplete_beta(double a, double b, double x) {
  if (!(a > 0) || !(b > 0) || !(x >= 0 && x <= 1))
    throw std::invalid_argument("incomplete beta function: a, b > 0 and x in [0, 1]");
  if (x == 0 || x == 1) return x;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  // The fraction converges fast on this side alone; the other follows by symmetry.
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double t_p_value(double t, double freedom) {
  return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t));
}

double t_of_p(double p, double freedom) {
  if (!(p > 0 && p < 1)) throw std::invalid_argument("t of p: p in (0, 1)");
  double low = 0, high = 1;
  while (t_p_value(high, freedom) > p) high *= 2;
  for (int n = 0; n < 200 && high - low > 1e-14 * high; ++n) {
    const double middle = (low + high) / 2;
    (t_p_value(middle, freedom) > p ? low : high) = middle;
  }
  return (low + high) / 2;
}

double t_of_interval(int64_t n) {
  // Rows of a table are of as many numbers, and to find it takes longer than all the rest of them.
  thread_local int64_t last = 0;
  thread_local double t = 0;
  if (n != last) {
    t = t_of_p(kInterval, static_cast<double>(n - 1));
    last = n;
  }
  return t;
}

std::optional<double> mean_p_value(const std::vector<double>& differences, double rounding) {
  if (differences.size() < 2 || !all_finite(differences)) return std::nullopt;
  const auto [least, most] = std::minmax_element(differences.begin(), differences.end());
  if (*most - *least <= rounding)
    return *least <= rounding && *most >= -rounding ? std::optional(1.0) : std::nullopt;
  const auto spread = spread_of(differences);
  const auto n = static_cast<double>(spread.n);
  return t_p_value(spread.mean * std::sqrt(n) / *spread.deviation, n - 1);
}

std::optional<double> half_interval(const Spread& spread) {
  if (!spread.deviation) return std::nullopt;
  return t_of_interval(spread.n) * *spread.deviation / std::sqrt(static_cast<double>(spread.n));
}

std::optional<Interval> t_interval(const Spread& spread) {
  const auto half = half_interval(spread);
  if (!half) return std::nullopt;
  return Interval{spread.mean - *half, spread.mean + *half};
}

PairedDifference paired_difference(const std::vector<double>& arm,
                                   const std::vector<double>& baseline) {
  if (arm.empty() || arm.size() != baseline.size())
    throw std::invalid_argument("paired difference: as many numbers of both, at least one");
  PairedDifference paired;
  for (size_t i = 0; i < arm.size(); ++i) paired.differences.push_back(arm[i] - baseline[i]);
  if (!all_finite(paired.differences))
    throw std::invalid_argument("paired difference: numbers must be finite");
  const auto spread = spread_of(paired.differences);
  paired.mean = spread.mean;
  if (arm.size() < 2) return paired;
  if (all_equal(paired.differences, arm, baseline)) {
    paired.deviation = 0;
    paired.interval = Interval{paired.mean, paired.mean};
    paired.without_spread = paired.mean != 0;
    if (!paired.without_spread) paired.p = 1;
  } else {
    paired.deviation = spread.deviation;
    paired.interval = t_interval(spread);
    paired.p = mean_p_value(paired.differences);
  }
  if (arm.size() >= kPairsOfBootstrap) paired.bootstrap = bootstrap_interval(paired.differences);
  return paired;
}

std::vector<std::optional<double>> holm(const std::vector<std::optional<double>>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return !p[i]; });
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return *p[i] < *p[j]; });
  std::vector<std::optional<double>> corrected(p.size());
  double least = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    least = std::max(least, std::min(1.0, static_cast<double>(p.size() - rank) * *p[order[rank]]));
    corrected[order[rank]] = least;
  }
  return corrected;
}

Interval bootstrap_interval(const std::vector<double>& differences) {
  constexpr size_t kResamples = 10'000;
  const auto n = differences.size();
  std::mt19937_64 random(0);
  std::vector<double> means;
  for (size_t r = 0; r < kResamples; ++r) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += differences[random() % n];
    means.push_back(sum / static_cast<double>(n));
  }
  std::sort(means.begin(), means.end());
  const auto outside = static_cast<size_t>(kInterval / 2 * kResamples);
  return {means[outside], means[kResamples - 1 - outside]};
}

}  // namespace headlab
