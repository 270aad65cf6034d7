// Rows of scores, their mask, and the softmax: written once for all Lanes (lanes.h).
#pragma once

#include "core/kernels/lanes.h"

namespace headlab {

// n entries, whole vectors; scores of hidden keys are -infinity.
template <class Lanes>
struct Row {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  const Lanes& lanes;
  T* z;
  int64_t n;

  // Each X becomes change(X, place of its first entry).
  template <class Change>
  HEADLAB_DEVICE void each(const Change& change) const {
    lanes.each(n, [&](int64_t j) { Lanes::store(z + j, change(Lanes::load(z + j), j)); });
  }
  template <class Term>
  HEADLAB_DEVICE T sum(const Term& term) const {
    X total(T(0));
    lanes.each(n, [&](int64_t j) { total = total + term(Lanes::load(z + j), j); });
    return lanes.sum(total);
  }
  HEADLAB_DEVICE T highest() const {
    X most(kLowest<T>);
    lanes.each(n, [&](int64_t j) { most = Lanes::max(most, Lanes::load(z + j)); });
    return lanes.most(most);
  }
  HEADLAB_DEVICE void fill(T value) const {
    each([&](const X&, int64_t) { return X(value); });
  }
  HEADLAB_DEVICE void clear() const { fill(0); }
};

// A map of rows, as static functions of Lanes:
//   kSaved                  numbers that it keeps of a row from the forward pass on
//   kTraced                 backward() wants a number of each key beside the weights
//   weigh(row, number, saved)
//       scores -> weights in place, 0 at hidden keys and all NaN where a score is; writes `saved`
//   again(row, number, saved, a)
//       the same from what weigh() saved, into a; a is the row itself but in a traced map, where
//       the row keeps the trace
//   backward(row, trace, a, number, saved)
//       the gradient of the weights a -> that of the scores, in place. Returns that of `number`
// `number` is the one that the map has, or has for each head.

// e^z / (e^number + sum e^z): the softmax, with a score `number` that has no key (a sink;
// -infinity: none). Saved: the log of the divisor, infinite where no key is allowed.
template <class Lanes>
struct SoftmaxRow {
  using T = typename Lanes::Number;
  using X = typename Lanes::X;
  static constexpr int kSaved = 1;
  static constexpr bool kTraced = false;

  static HEADLAB_DEVICE void weigh(const Row<Lanes>& row, T sink, T* saved) {
    const T of_keys = row.highest(), max = of_keys > sink ? of_keys : sink;
    T lse = -kLowest<T>;
    if (of_keys == kLowest<T>) {
      row.clear();
    } else if (std::isnan(of_keys)) {  // near_exp() may make numbers of NaN
      row.fill(lse = of_keys);
    } else {
      X partial(T(0));
      row.each([&](const X& score, int64_t) {
        const X e = Lanes::near_exp(score - X(max));
        partial = partial + e;
        return e;
      });
      const T total = row.lanes.sum(partial) + (sink > kLowest<T> ? std::exp(sink - max) : T(0));
      const X inverse(1 / total);
      row.each([&](const X& e, int64_t) { return e * inverse; });
      lse = max + std::log(total);
    }
    if (row.lanes.leader()) saved[0] = lse;
  }
  static HEADLAB_DEVICE void again(const Row<Lanes>& row, T, const T* saved, T*) {
    const T lse = saved[0];
    if (std::isnan(lse)) return row.fill(lse);
    row.each([&](const X& score, int64_t) { return Lanes::near_exp(score - X(lse)); });
  }
  static HEADLAB_DEVICE T backward(const Row<Lanes>& row, const T*, const T* a, T sink,
                                   const T* saved) {
    const T mean = row.sum([&](const X& g, int64_t j) { return Lanes::load(a + j) * g; });
    row.each([&](const X& g, int64_t j) { return Lanes::load(a + j) * (g - X(mean)); });
    return sink > kLowest<T> ? -std::exp(sink - saved[0]) * mean : T(0);
  }
};

// f(j) for each of the keys begin .. end - 1 that row (b, h, i) may not see.
template <class Lanes, class T, class F>
HEADLAB_DEVICE void each_hidden(const Lanes& lanes, const AttentionRows<T>& p, int64_t b, int64_t h,
                                int64_t i, int64_t begin, int64_t end, const F& f) {
  const auto [first, last] = key_span(p, b, i);
  lanes.entries(begin, (first < end ? first : end) - 1, f);
  lanes.entries(last < begin ? begin : last + 1, end - 1, f);
  if (const bool* allowed = row_at(p.allowed, b, h, i); allowed != nullptr)
    lanes.entries(first, last, [&](int64_t j) {
      if (!allowed[j * p.allowed.stride[3]]) f(j);
    });
}

// Adds the biases of row (b, h, i) to its scores z, of which begin .. end - 1 are in use, and sets
// to -infinity what it may not see.
template <class Lanes, class T>
HEADLAB_DEVICE void mask_scores(const Lanes& lanes, const AttentionRows<T>& p, int64_t b, int64_t h,
                                int64_t i, int64_t begin, int64_t end, T* z) {
  const auto [first, last] = key_span(p, b, i);
  if (p.distance_bias) {
    const T* by = p.distance_bias + h * (p.queries + p.keys - 1) + (p.keys - 1 - row_place(p, i));
    lanes.entries(first, last, [&](int64_t j) { z[j] += by[j]; });
  }
  if (const T* bias = row_at(p.bias, b, h, i))
    lanes.entries(first, last, [&](int64_t j) { z[j] += bias[j * p.bias.stride[3]]; });
  each_hidden(lanes, p, b, h, i, begin, end, [&](int64_t j) { z[j] = kLowest<T>; });
}

}  // namespace headlab
