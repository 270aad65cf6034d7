// Mean and deviation of what several runs gave.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headlab {

struct Spread {
  double mean = 0;
  std::optional<double> deviation;  // of a sample; none of one value
  int64_t n = 0;
};
Spread spread_of(const std::vector<double>& values);  // at least one

}  // namespace headlab
