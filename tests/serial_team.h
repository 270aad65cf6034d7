// The warps of a GPU's block one after the other, in any order, for the kernels that are written
// for all teams (core/kernels/team.h). What a phase leaves behind is all that the next one sees.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "core/kernels/team.h"

namespace headlab::testing {

enum class WarpOrder { kRising, kFalling, kRandom };

template <class T, int64_t rows = 16>
struct SerialTeam {
  using Number = T;
  using Lanes = SerialLanes<T>;
  static constexpr int64_t kRows = rows;
  static constexpr bool kPadsPanels = false;
  int64_t warps = 1;
  WarpOrder order = WarpOrder::kRising;

  template <class F>
  void each(int64_t n, const F& f) const {
    for (const int64_t warp : in_order())
      for (int64_t item = warp; item < n; item += warps) f(Lanes(), item);
  }
  void sync() const {}
  template <class A, class B, class C>
  void multiply(int64_t n, const Sizes& sizes, const A& a, const B& b, const C& c, bool add) const {
    each(n, [&](const Lanes&, int64_t i) {
      const Strided<T> left = a(i), right = b(i);
      const RowMajor<T> out = c(i);
      for (int64_t m = 0; m < sizes.M; ++m)
        for (int64_t x = 0; x < sizes.N; ++x) {
          T sum = add ? out.at[m * out.row + x] : T(0);
          for (int64_t k = 0; k < sizes.K; ++k)
            sum += left.at[m * left.row + k * left.column] *
                   right.at[k * right.row + x * right.column];
          out.at[m * out.row + x] = sum;
        }
    });
  }
  static Panel<T> panel(const View<const T>& x, int64_t b, int64_t head, int64_t, int64_t, T*) {
    return panel_in_place(x, b, head);
  }

 private:
  std::vector<int64_t> in_order() const {
    std::vector<int64_t> all(warps);
    std::iota(all.begin(), all.end(), 0);
    if (order == WarpOrder::kFalling) std::reverse(all.begin(), all.end());
    static std::mt19937 random(1);
    if (order == WarpOrder::kRandom) std::shuffle(all.begin(), all.end(), random);
    return all;
  }
};

}  // namespace headlab::testing
