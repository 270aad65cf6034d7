// Vectors of one instruction set, and a row of scores or weights in them. Only for .isa.cpp files,
// which are compiled once for each.
#pragma once

// g++ 12 takes the undefined lanes inside its own AVX-512 headers for a mistake of ours.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cmath>
#include <limits>

#include "core/kernels/attention_rows.h"
#include "core/kernels/row_map.h"

namespace headlab::CPU_CAPABILITY {

template <class T>
using Vec = at::vec::Vectorized<T>;

template <class T>
T sum_lanes(const Vec<T>& v) {
  return at::vec::vec_reduce_all<T>([](Vec<T>& a, Vec<T>& b) { return a + b; }, v);
}

// n entries, whole vectors; scores of hidden keys are -infinity.
template <class T>
struct MapRow {
  using V = Vec<T>;
  T* z;
  int64_t n;

  static constexpr T kLow = -std::numeric_limits<T>::infinity();

  // Each vector becomes change(vector, place of its first entry).
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
    V partial(T(0));
    each([&](const V& score, int64_t) {
      const V e = (score - V(max)).exp_u20();
      partial = partial + e;
      return e;
    });
    const T total = sum_lanes(partial) + (sink > kLow ? std::exp(sink - max) : T(0));
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
};

// Adds the biases of row (b, h, i) to its scores z, of which begin .. end - 1 are in use, and sets
// to -infinity what it may not see. Returns how many keys it may.
template <class T>
int64_t mask_scores(const AttentionRows<T>& p, int64_t b, int64_t h, int64_t i, int64_t begin,
                    int64_t end, T* z) {
  const auto [first, last] = key_span(p, b, i);
  for (int64_t j = begin; j < first && j < end; ++j) z[j] = MapRow<T>::kLow;
  for (int64_t j = last < begin ? begin : last + 1; j < end; ++j) z[j] = MapRow<T>::kLow;
  if (p.distance_bias) {
    const T* by = p.distance_bias + h * (p.queries + p.keys - 1) + (p.keys - 1 - row_place(p, i));
    for (int64_t j = first; j <= last; ++j) z[j] += by[j];
  }
  if (p.bias.data) {
    const T* bias = row_at(p.bias, b, h, i);
    for (int64_t j = first; j <= last; ++j) z[j] += bias[j * p.bias.stride[3]];
  }
  int64_t n = last - first + 1;
  if (const bool* allowed = row_at(p.allowed, b, h, i); allowed != nullptr) {
    for (int64_t j = first; j <= last; ++j)
      if (!allowed[j * p.allowed.stride[3]]) z[j] = MapRow<T>::kLow, --n;
  }
  return n;
}

// The functions of a map: Of<T> has them as static weigh() and backward().
template <template <class> class Of>
RowMap row_map() {
  return {.f32 = {Of<float>::weigh, Of<float>::backward},
          .f64 = {Of<double>::weigh, Of<double>::backward}};
}

}  // namespace headlab::CPU_CAPABILITY
