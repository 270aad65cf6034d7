// Rows of alpha-entmax, 1 < alpha <= 2 (the map's number), for all Lanes: the threshold by Newton's
// method.
#pragma once

#include "core/kernels/map_rows.h"

namespace headlab {

// p = w^(1/e), w = [1 + e (y - t)]_+, e = alpha - 1, and q = -dp/dt = p / w; of u = w - 1.
template <class Lanes>
struct SparsemaxPower {
  using X = typename Lanes::X;
  static HEADLAB_DEVICE void weigh(const X& u, X& p, X& q) {
    using T = typename Lanes::Number;
    p = u + X(T(1));
    q = Lanes::where(p > X(T(0)), X(T(1)), X(T(0)));
  }
};
template <class Lanes>
struct Entmax15Power {
  using X = typename Lanes::X;
  static HEADLAB_DEVICE void weigh(const X& u, X& p, X& q) {
    q = u + X(typename Lanes::Number(1));
    p = q * q;
  }
};
template <class Lanes>
struct EntmaxPower {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  X inverse;
  HEADLAB_DEVICE void weigh(const X& u, X& p, X& q) const {
    p = Lanes::near_exp(Lanes::log1p(u) * inverse);  // no digit is lost where alpha is nearly 1
    q = p / Lanes::max(u + X(T(1)), X(kTiny<T>));
  }
};

template <class Lanes>
struct EntmaxRow {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  static constexpr int kSaved = 2;  // highest score + t, 1 / sum of the weights
  static constexpr bool kTraced = true;

  static HEADLAB_DEVICE void weigh(const Row<Lanes>& row, T alpha, T* saved) {
    by_power(alpha, [&](const auto& power) { weigh_by(power, row, alpha - 1, saved); });
  }
  static HEADLAB_DEVICE void again(const Row<Lanes>& row, T alpha, const T* saved, T* a) {
    by_power(alpha, [&](const auto& power) {
      const T top = saved[0];
      const X one(saved[1]);
      row.each([&](const X& score, int64_t j) {
        X p, q;
        weigh_at(power, score, top, alpha - 1, p, q);
        Lanes::store(a + j, p * one);
        return q * one;
      });
    });
  }

  // With q = p^(2-alpha) on the support, the trace, and s = q / sum q:
  //   dz = q (g - <s,g>)
  //   dp/dalpha = (p - s) / (alpha-1)^2 - (p ln p - s sum p ln p) / (alpha-1)
  static HEADLAB_DEVICE T backward(const Row<Lanes>& row, const T* trace, const T* a, T alpha,
                                   const T*) {
    X q_total(T(0)), q_along(T(0)), p_along(T(0)), h_along(T(0)), h_total(T(0));
    row.lanes.each(row.n, [&](int64_t j) {
      const X q = Lanes::load(trace + j), p = Lanes::load(a + j), g = Lanes::load(row.z + j);
      const X h = p * Lanes::log(Lanes::max(p, X(kTiny<T>)));
      q_total = q_total + q;
      q_along = Lanes::fma(q, g, q_along);
      p_along = Lanes::fma(p, g, p_along);
      h_along = Lanes::fma(h, g, h_along);
      h_total = h_total + h;
    });
    const T total = row.lanes.sum(q_total), e = alpha - 1;
    if (!(total > 0)) {
      row.clear();
      return 0;
    }
    const T along = row.lanes.sum(q_along) / total;  // <s,g>
    row.each([&](const X& g, int64_t j) { return Lanes::load(trace + j) * (g - X(along)); });
    return (row.lanes.sum(p_along) - along) / (e * e) -
           (row.lanes.sum(h_along) - along * row.lanes.sum(h_total)) / e;
  }

 private:
  template <class Work>
  static HEADLAB_DEVICE void by_power(T alpha, const Work& work) {
    if (alpha == T(2)) return work(SparsemaxPower<Lanes>());
    if (alpha == T(1.5)) return work(Entmax15Power<Lanes>());
    work(EntmaxPower<Lanes>{X(1 / (alpha - 1))});
  }

  template <class Power>
  static HEADLAB_DEVICE void weigh_at(const Power& power, const X& score, T top, T e, X& p, X& q) {
    power.weigh(Lanes::max(X(e) * (score - X(top)), X(T(-1))), p, q);
  }

  template <class Power>
  static HEADLAB_DEVICE void weigh_by(const Power& power, const Row<Lanes>& row, T e, T* saved) {
    const T highest = row.highest();
    if (highest == kLowest<T>) {
      row.clear();
      if (row.lanes.leader()) saved[0] = -kLowest<T>, saved[1] = 0;
      return;
    }
    const T top = highest + threshold(power, row, e, highest);
    X sum(T(0));
    row.each([&](const X& score, int64_t) {
      X p, q;
      weigh_at(power, score, top, e, p, q);
      sum = sum + p;
      return p;
    });
    const T total = row.lanes.sum(sum);
    const X one(1 / total);
    row.each([&](const X& p, int64_t) { return p * one; });
    if (row.lanes.leader()) saved[0] = top, saved[1] = 1 / total;
  }

  // t for y = score - highest. Newton's method on f^e, f the sum of the weights: that is a norm of
  // w, which falls and is convex in t, and a straight line where the scores are equal. So from
  // where f is 1 or more the steps come nearer without ever passing the solution. They begin where
  // it would be 1 if the scores that have weight at t = 0 were all their mean, which by Jensen's
  // inequality is no later. Near the solution a step leaves the square of what was missing.
  template <class Power>
  static HEADLAB_DEVICE T threshold(const Power& power, const Row<Lanes>& row, T e, T highest) {
    const X below(highest - 1 / e), zero(T(0)), one(T(1));  // there the weight at t = 0 is 0
    X sums(zero), counts(zero);
    row.lanes.each(row.n, [&](int64_t j) {
      const X z = Lanes::load(row.z + j);
      sums = sums + Lanes::where(z > below, z - X(highest), zero);
      counts = counts + Lanes::where(z > below, one, zero);
    });
    const T n = row.lanes.sum(counts);
    T t = row.lanes.sum(sums) / n - std::expm1(-e * std::log(n)) / e;
    if (!(t > 0)) t = 0;
    constexpr T kNear = sizeof(T) == 4 ? T(1e-5) : T(4e-10);
    for (int step = 0; step < 100; ++step) {
      X sum(zero), slope(zero);
      row.lanes.each(row.n, [&](int64_t j) {
        X p, q;
        weigh_at(power, Lanes::load(row.z + j), highest + t, e, p, q);
        sum = sum + p, slope = slope + q;
      });
      const T f = row.lanes.sum(sum);
      const T next = t + (f - std::pow(f, 1 - e)) / (e * row.lanes.sum(slope));
      if (!(next > t)) break;
      t = next;
      if (f - 1 < kNear) break;
    }
    return t;
  }
};

}  // namespace headlab
