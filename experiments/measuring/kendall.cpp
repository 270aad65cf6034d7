#include "experiments/measuring/kendall.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace headlab {
namespace {

int sign_of(double value) { return (value > 0) - (value < 0); }

}  // namespace

std::vector<size_t> falling_order(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t n) {
    return std::isnan(values[n]) ? -std::numeric_limits<double>::infinity() : values[n];
  };
  std::ranges::stable_sort(order, std::greater(), key);
  return order;
}

double kendall_tau(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size())
    throw std::invalid_argument("Kendall's tau: a has " + std::to_string(a.size()) +
                                " numbers and b has " + std::to_string(b.size()));
  int64_t alike = 0, of_a = 0, of_b = 0;  // of_a: pairs that a does not tie
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const int in_a = sign_of(a[i] - a[j]), in_b = sign_of(b[i] - b[j]);
      alike += in_a * in_b, of_a += in_a != 0, of_b += in_b != 0;
    }
  if (of_a == 0 || of_b == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(alike) /
         std::sqrt(static_cast<double>(of_a) * static_cast<double>(of_b));
}

}  // namespace headlab
