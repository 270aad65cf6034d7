// The maps of a row of scores to weights and back, for one instruction set: whole vectors, in
// place. Only for .isa.cpp files.
#pragma once

#include <cmath>
#include <limits>

#include "core/kernels/entmax_lanes.h"
#include "core/kernels/row_map.h"

namespace headlab::CPU_CAPABILITY {

// A row of n entries; scores of hidden keys are -infinity. A score that is NaN makes its row NaN.
template <class T>
struct MapRow {
  using V = Vec<T>;
  T* z;
  int64_t n;

  static constexpr T kLow = -std::numeric_limits<T>::infinity();

  template <class Change>
  void each(const Change& change) const {
    for (int64_t j = 0; j < n; j += V::size()) change(V::loadu(z + j), j).store(z + j);
  }
  template <class Term>
  T sum(const Term& term) const {
    V total(T(0));
    for (int64_t j = 0; j < n; j += V::size()) total = total + term(V::loadu(z + j), j);
    return sum_lanes(total);
  }
  T highest() const {
    V most(kLow);
    for (int64_t j = 0; j < n; j += V::size()) most = at::vec::maximum(most, V::loadu(z + j));
    return at::vec::vec_reduce_all<T>([](V& a, V& c) { return at::vec::maximum(a, c); }, most);
  }
  void fill(T value) const {
    each([&](const V&, int64_t) { return V(value); });
  }
  void clear() const { fill(0); }

  // The softmax with a score `sink` that has no key (-infinity: without). Returns the log of its
  // sum, infinite where no key is allowed.
  T softmax(T sink) const {
    const T of_keys = highest(), max = of_keys > sink ? of_keys : sink;
    if (of_keys == kLow) {
      clear();
      return -kLow;
    }
    if (std::isnan(of_keys)) return fill(of_keys), of_keys;  // exp_u20() makes numbers of NaN
    T total = 0;
    V partial(T(0));
    each([&](const V& score, int64_t) {
      const V e = (score - V(max)).exp_u20();
      partial = partial + e;
      return e;
    });
    total = sum_lanes(partial) + (sink > kLow ? std::exp(sink - max) : T(0));
    const V inverse(1 / total);
    each([&](const V& e, int64_t) { return e * inverse; });
    return max + std::log(total);
  }
  void softmax_of(T lse) const {
    if (std::isnan(lse)) return fill(lse);
    each([&](const V& score, int64_t) { return (score - V(lse)).exp_u20(); });
  }
  // The gradient of the scores, in place of that of the weights a. Returns sum_j a_j g_j.
  T softmax_backward(const T* a) const {
    const T mean = sum([&](const V& g, int64_t j) { return V::loadu(a + j) * g; });
    each([&](const V& g, int64_t j) { return V::loadu(a + j) * (g - V(mean)); });
    return mean;
  }

  void sigmoid(T offset) const {
    each([&](const V& score, int64_t) {
      const V w = V(T(1)) / (V(T(1)) + (V(-offset) - score).exp_u20());
      const V nan = score != score;  // NOLINT(misc-redundant-expression): a lane of NaN
      return V::blendv(V::blendv(w, V(T(0)), score == V(kLow)), score, nan);
    });
  }
  void sigmoid_backward(const T* a) const {
    each([&](const V& g, int64_t j) {
      const V w = V::loadu(a + j);
      return w * (V(T(1)) - w) * g;
    });
  }

  // e / D, e = exp(z - m) - exp(-m), D = sum |e| + eps, m = max(max z, 0); weights are what of it
  // is positive. Hidden keys: 0.
  struct Pick {
    T least, divisor, of_m;  // exp(-m), D, and eps / D where m is the highest score
  };
  Pick softpick(T eps) const {
    const T most = highest(), m = most > 0 ? most : T(0), least = std::exp(-m);
    V total(T(0));
    each([&](const V& score, int64_t) {
      const V e = (score - V(m)).exp() - V(least);
      const V kept = V::blendv(e, V(T(0)), score == V(kLow));
      total = total + kept.abs();
      return kept;
    });
    const T divisor = sum_lanes(total) + eps;
    const V inverse(1 / divisor);
    each([&](const V& e, int64_t) { return e * inverse; });
    return {least, divisor, most > 0 ? eps / divisor : T(0)};
  }
  void rectify(const T* from) const {
    each([&](const V&, int64_t j) { return at::vec::maximum(V::loadu(from + j), V(T(0))); });
  }
  // From `signed_` = e / D. exp(z - m) = e + exp(-m); at hidden keys the gradient is 0 as e is.
  void softpick_backward(const T* signed_, const Pick& pick) const {
    const V zero(T(0));
    const T mean = sum(
        [&](const V& g, int64_t j) { return at::vec::maximum(V::loadu(signed_ + j), zero) * g; });
    const V inverse(1 / pick.divisor), D(pick.divisor), least(pick.least), m(mean);
    each([&](const V& g, int64_t j) {
      const V e = V::loadu(signed_ + j);
      const V up = V::blendv(zero, g - m, e > zero), down = V::blendv(zero, m, e < zero);
      return (up + down) * inverse * at::vec::fmadd(e, D, least);
    });
    if (pick.of_m == 0) return;
    // m scales everything but eps: its gradient goes to the highest scores.
    const MapRow signs{const_cast<T*>(signed_), n};
    const V most(signs.highest()), one(T(1));
    const T ties = signs.sum([&](const V& e, int64_t) { return V::blendv(zero, one, e == most); });
    const V share(pick.of_m * mean / ties);
    each([&](const V& g, int64_t j) {
      return g - V::blendv(zero, share, V::loadu(signed_ + j) == most);
    });
  }

  // scratch [n + 16]
  void entmax(T alpha, T* scratch) const {
    if (highest() == kLow) return clear();
    CPU_CAPABILITY::entmax(z, n, alpha, z, scratch);
  }
  void entmax_backward(const T* a, T alpha) const {
    const V zero(T(0)), power(2 - alpha);
    const auto slope = [&](int64_t j) {
      const V p = V::loadu(a + j);
      const V q = alpha == T(1.5) ? p.sqrt() : alpha == T(2) ? V(T(1)) : (p.log() * power).exp();
      return V::blendv(zero, q, p > zero);
    };
    const T total = sum([&](const V&, int64_t j) { return slope(j); });
    if (!(total > 0)) return clear();
    const T mean = sum([&](const V& g, int64_t j) { return slope(j) * g; }) / total;
    each([&](const V& g, int64_t j) { return slope(j) * (g - V(mean)); });
  }
};

}  // namespace headlab::CPU_CAPABILITY
