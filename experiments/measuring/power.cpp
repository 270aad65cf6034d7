#include "experiments/measuring/power.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "experiments/measuring/paired.h"

namespace headlab {
namespace {

// Beyond which a normal density leaves less than 1e-18.
constexpr double kFar = 9;

double normal_below(double z) { return std::erfc(-z / std::numbers::sqrt2) / 2; }

// That a two-sided test at `alpha` of so many pairs must exceed.
double critical_t(int64_t pairs, double alpha) {
  if (pairs < 2) throw std::invalid_argument("power of a paired t test: at least two pairs");
  return t_of_p(alpha, static_cast<double>(pairs - 1));
}

double power_beyond(double t, double effect, int64_t pairs) {
  const double shift = effect * std::sqrt(static_cast<double>(pairs));
  return noncentral_t_above(t, pairs - 1, shift) + noncentral_t_above(t, pairs - 1, -shift);
}

}  // namespace

double noncentral_t_above(double t, int64_t degrees, double shift) {
  if (degrees < 1 || !std::isfinite(t) || !std::isfinite(shift))
    throw std::invalid_argument("noncentral t: at least 1 degree of freedom, t and shift finite");
  if (t < 0) return 1 - noncentral_t_above(-t, degrees, -shift);
  const auto freedom = static_cast<double>(degrees);
  // The mean over s = sqrt(C / freedom) of P(Z > t s - shift), by Simpson's rule between the least
  // and the largest s that add to it.
  const double log_front =
      std::log(2.0) + freedom / 2 * std::log(freedom / 2) - std::lgamma(freedom / 2);
  const auto density = [&](double s) {
    if (s == 0) return freedom == 1 ? std::exp(log_front) : 0.0;
    return std::exp(log_front + (freedom - 1) * std::log(s) - freedom * s * s / 2);
  };
  const double around = kFar / std::sqrt(freedom), low = std::max(0.0, 1 - around);
  const double high = t > 0 ? std::min(1 + around, (shift + kFar) / t) : 1 + around;
  if (high <= low) return 0;
  constexpr int kParts = 2000;  // even
  const double step = (high - low) / kParts;
  double sum = 0;
  for (int i = 0; i <= kParts; ++i) {
    const double s = low + i * step;
    const int weight = i == 0 || i == kParts ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * density(s) * normal_below(shift - t * s);
  }
  return std::min(1.0, sum * step / 3);
}

double paired_t_power(double effect, int64_t pairs, double alpha) {
  return power_beyond(critical_t(pairs, alpha), effect, pairs);
}

double tellable_effect(int64_t pairs, double alpha, double power) {
  if (!(alpha < power && power <= 1 - 1e-9))  // nearer to 1 the integral is not exact enough
    throw std::invalid_argument("tellable effect: a power between alpha and 1 - 1e-9");
  // Tables ask for the same one again and again, and to find it takes longer than all the rest.
  thread_local struct {
    int64_t pairs = 0;
    double alpha = 0, power = 0, effect = 0;
  } last;
  if (last.pairs == pairs && last.alpha == alpha && last.power == power) return last.effect;
  const double t = critical_t(pairs, alpha);
  double low = 0, high = 1;
  while (power_beyond(t, high, pairs) < power) low = high, high *= 2;
  for (int n = 0; n < 100 && high - low > 1e-9 * high; ++n) {
    const double middle = (low + high) / 2;
    (power_beyond(t, middle, pairs) < power ? low : high) = middle;
  }
  last = {pairs, alpha, power, (low + high) / 2};
  return last.effect;
}

}  // namespace headlab
