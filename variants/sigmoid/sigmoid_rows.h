// Rows of sigmoids for all Lanes. The map's number is the offset.
#pragma once

#include "core/kernels/map_rows.h"

namespace headlab {

template <class Lanes>
struct SigmoidRow {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  static constexpr int kSaved = 0;
  static constexpr bool kTraced = false;

  static HEADLAB_DEVICE void weigh(const Row<Lanes>& row, T offset, T*) {
    row.each([&](const X& z, int64_t) {
      const X one(T(1)), w = one / (one + Lanes::near_exp(X(-offset) - z));
      const X shown = Lanes::where(z == X(kLowest<T>), X(T(0)), w);
      // near_exp() may make numbers of NaN.
      return Lanes::where(z == z, shown, z);  // NOLINT(misc-redundant-expression)
    });
  }
  static HEADLAB_DEVICE void again(const Row<Lanes>& row, T offset, const T*, T*) {
    weigh(row, offset, nullptr);
  }
  static HEADLAB_DEVICE T backward(const Row<Lanes>& row, const T*, const T* a, T, const T*) {
    row.each([&](const X& g, int64_t j) {
      const X w = Lanes::load(a + j);
      return w * (X(T(1)) - w) * g;
    });
    return 0;
  }
};

}  // namespace headlab
