// Rows of stick-breaking weights. For Lanes of one thread, which go along a row entry by entry; a
// warp would need a scan.
#pragma once

#include "core/kernels/map_rows.h"

namespace headlab {

// a_j = sigmoid(z_j) prod_{k > j} (1 - sigmoid(z_k)) over the allowed keys: the last key breaks its
// part off first. A score of +infinity takes all that is left. With odds e^z,
//   sigmoid(z) = odds / (1 + odds)     1 - sigmoid(z) = 1 / (1 + odds)
// so that nothing is subtracted. What is left of the stick is multiplied in float64, or many keys
// that take little would lose digits. The trace is sigmoid(z), 0 at hidden keys.
template <class Lanes>
struct StickRow {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  static constexpr int kSaved = 0;
  static constexpr bool kTraced = true;

  static void weigh(const Row<Lanes>& row, T, T*) {
    break_off(row, [&](int64_t j, T weight, T) { row.z[j] = weight; });
  }
  static void again(const Row<Lanes>& row, T, const T*, T* a) {
    break_off(row, [&](int64_t j, T weight, T share) { a[j] = weight, row.z[j] = share; });
  }

  // dz_j = e_j - sigmoid(z_j) sum_{k <= j} e_k with e = a g: what key j takes is lost to those
  // before it.
  static T backward(const Row<Lanes>& row, const T* sigmoids, const T* a, T, const T*) {
    double taken = 0;
    for (int64_t j = 0; j < row.n; ++j) {
      const double e = static_cast<double>(a[j]) * row.z[j];
      taken += e;
      row.z[j] = static_cast<T>(e - sigmoids[j] * taken);
    }
    return 0;
  }

 private:
  // Above it e^z would be infinite, or 1 / e^z no normal number; the rest of a stick is nothing.
  static constexpr T kMost = sizeof(T) == 4 ? 80 : 700;

  // write(j, a_j, sigmoid(z_j)) from the last key to the first.
  template <class Write>
  static void break_off(const Row<Lanes>& row, const Write& write) {
    row.each([](const X& z, int64_t) {
      return Lanes::exp(Lanes::where(z > X(kMost), X(kMost), z));  // keeps NaN
    });
    double left = 1;
    for (int64_t j = row.n - 1; j >= 0; --j) {
      const double odds = row.z[j], rest = 1 / (1 + odds), share = odds * rest;
      write(j, static_cast<T>(left * share), static_cast<T>(share));
      left *= rest;
    }
  }
};

}  // namespace headlab
