// Rows of softpick for all Lanes.
#pragma once

#include "core/kernels/map_rows.h"

namespace headlab {

// e / D, e = exp(z - m) - exp(-m), D = sum |e| + eps, m = max(max z, 0); weights are what of it is
// positive, and the trace is all of it. Hidden keys: 0. The map's number is eps.
template <class Lanes>
struct SoftpickRow {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  static constexpr int kSaved = 2;  // m, D
  static constexpr bool kTraced = true;

  static HEADLAB_DEVICE void weigh(const Row<Lanes>& row, T eps, T* saved) {
    const T most = row.highest(), m = most > 0 ? most : T(0);
    const X least = Lanes::exp(X(-m));
    X total(T(0));
    row.each([&](const X& z, int64_t) {
      const X e = shown(z, m, least);
      total = total + Lanes::abs(e);
      return e;
    });
    const T divisor = row.lanes.sum(total) + eps;
    const X inverse(1 / divisor);
    row.each([&](const X& e, int64_t) { return Lanes::max(e * inverse, X(T(0))); });
    if (row.lanes.leader()) saved[0] = m, saved[1] = divisor;
  }
  static HEADLAB_DEVICE void again(const Row<Lanes>& row, T, const T* saved, T* a) {
    const X inverse(1 / saved[1]), least = Lanes::exp(X(-saved[0]));
    row.each([&](const X& z, int64_t j) {
      const X part = shown(z, saved[0], least) * inverse;
      Lanes::store(a + j, Lanes::max(part, X(T(0))));
      return part;
    });
  }

  // exp(z - m) = e + exp(-m); at hidden keys the gradient is 0 as e is.
  static HEADLAB_DEVICE T backward(const Row<Lanes>& row, const T* trace, const T* a, T eps,
                                   const T* saved) {
    const X zero(T(0));
    const T mean = row.sum([&](const X& g, int64_t j) { return Lanes::load(a + j) * g; });
    const X inverse(1 / saved[1]), D(saved[1]), least = Lanes::exp(X(-saved[0])), m(mean);
    row.each([&](const X& g, int64_t j) {
      const X e = Lanes::load(trace + j);
      const X up = Lanes::where(e > zero, g - m, zero), down = Lanes::where(e < zero, m, zero);
      return (up + down) * inverse * Lanes::fma(e, D, least);
    });
    if (!(saved[0] > 0)) return 0;
    // m is the highest score. It scales everything but eps: its gradient goes to those scores.
    const Row<Lanes> signs{row.lanes, const_cast<T*>(trace), row.n};
    const X most(signs.highest()), one(T(1));
    const T ties =
        signs.sum([&](const X& e, int64_t) { return Lanes::where(e == most, one, zero); });
    const X share(eps / saved[1] * mean / ties);
    row.each([&](const X& g, int64_t j) {
      return g - Lanes::where(Lanes::load(trace + j) == most, share, zero);
    });
    return 0;
  }

 private:
  // e, with least = exp(-m). By the exp of the scores: one of 0 has e = 0 exactly, where the slope
  // changes.
  static HEADLAB_DEVICE X shown(const X& z, T m, const X& least) {
    return Lanes::where(z == X(kLowest<T>), X(T(0)), Lanes::exp(z - X(m)) - least);
  }
};

}  // namespace headlab
