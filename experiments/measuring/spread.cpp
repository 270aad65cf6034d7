#include "experiments/measuring/spread.h"

#include <cmath>

namespace headlab {

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

}  // namespace headlab
