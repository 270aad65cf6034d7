// Normal draws that every machine has alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace headlab {

class Normal {
 public:
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }
  std::vector<double> draws(size_t count, double mean = 0, double deviation = 1) {
    std::vector<double> values(count);
    for (double& value : values) value = mean + deviation * (*this)();
    return values;
  }

 private:
  double unit() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 random_{20240607};
};

}  // namespace headlab
