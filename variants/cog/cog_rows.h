// Rows of signed softmaxes for all Lanes: sign(z) softmax(|z|). Saved: the log of the divisor.
#pragma once

#include "core/kernels/map_rows.h"

namespace headlab {

template <class Lanes>
struct CogRow {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  static constexpr int kSaved = 1;
  static constexpr bool kTraced = false;

  // Scores of hidden keys stay -infinity.
  static HEADLAB_DEVICE X size(const X& z) {
    return Lanes::where(z == X(kLowest<T>), z, Lanes::abs(z));
  }
  static HEADLAB_DEVICE X with_sign(const X& z, const X& weight) {
    const X none(T(0));
    return Lanes::where(z > none, weight, Lanes::where(z < none, none - weight, none));
  }

  static HEADLAB_DEVICE void weigh(const Row<Lanes>& row, T, T* saved) {
    X most(kLowest<T>);
    row.lanes.each(row.n,
                   [&](int64_t j) { most = Lanes::max(most, size(Lanes::load(row.z + j))); });
    const T max = row.lanes.most(most);
    T lse = -kLowest<T>;  // no key is allowed
    if (std::isnan(max)) {
      lse = max;
    } else if (max > kLowest<T>) {
      lse =
          max +
          std::log(row.sum([&](const X& z, int64_t) { return Lanes::near_exp(size(z) - X(max)); }));
    }
    if (row.lanes.leader()) saved[0] = lse;
    weights(row, lse);
  }
  static HEADLAB_DEVICE void again(const Row<Lanes>& row, T, const T* saved, T*) {
    weights(row, saved[0]);
  }
  static HEADLAB_DEVICE T backward(const Row<Lanes>& row, const T*, const T* a, T, const T*) {
    const T sum = row.sum([&](const X& g, int64_t j) { return Lanes::load(a + j) * g; });
    row.each([&](const X& g, int64_t j) {
      const X w = Lanes::load(a + j);
      return Lanes::abs(w) * g - w * X(sum);
    });
    return 0;
  }

 private:
  static HEADLAB_DEVICE void weights(const Row<Lanes>& row, T lse) {
    if (std::isnan(lse)) return row.fill(lse);
    row.each([&](const X& z, int64_t) { return with_sign(z, Lanes::near_exp(size(z) - X(lse))); });
  }
};

}  // namespace headlab
