// Vectors of one instruction set as lanes of a row. Only for .isa.cpp files, which are compiled
// once for each.
#pragma once

// g++ 12 takes the undefined lanes inside its own AVX-512 headers for a mistake of ours.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include "core/kernels/map_rows.h"
#include "core/kernels/row_map.h"

namespace headlab::CPU_CAPABILITY {

template <class T>
using Vec = at::vec::Vectorized<T>;

template <class T>
struct VectorLanes : OneThread<VectorLanes<T>> {
  using Number = T;
  using X = Vec<T>;

  static X load(const T* p) { return X::loadu(p); }
  static X load(const T* p, int64_t n) {
    return n <= 0 ? X(T(0)) : X::loadu(p, n < X::size() ? n : X::size());
  }
  static X from(T start) { return X::arange(start, T(1)); }
  static void store(T* p, const X& x) { x.store(p); }
  static X exp(const X& x) { return x.exp(); }
  static X near_exp(const X& x) { return x.exp_u20(); }
  static X log(const X& x) { return x.log(); }
  static X log1p(const X& x) { return x.log1p(); }
  static X sqrt(const X& x) { return x.sqrt(); }
  static X abs(const X& x) { return x.abs(); }
  static X max(const X& a, const X& b) { return at::vec::maximum(a, b); }
  static X fma(const X& a, const X& b, const X& c) { return at::vec::fmadd(a, b, c); }
  static X where(const X& holds, const X& a, const X& b) { return X::blendv(b, a, holds); }
  static void add(double* to, const X& x) {
    T entries[X::size()];
    x.store(entries);
    for (int64_t n = 0; n < X::size(); ++n) to[n] += entries[n];
  }
  static void raise(double* to, const X& x) {
    T entries[X::size()];
    x.store(entries);
    for (int64_t n = 0; n < X::size(); ++n) to[n] = entries[n] > to[n] ? entries[n] : to[n];
  }

  template <class F>
  static void each(int64_t n, const F& f) {
    for (int64_t j = 0; j < n; j += X::size()) f(j);
  }
  static T sum(const X& x) {
    return at::vec::vec_reduce_all<T>([](X& a, X& b) { return a + b; }, x);
  }
  static T most(const X& x) {
    return at::vec::vec_reduce_all<T>([](X& a, X& b) { return at::vec::maximum(a, b); }, x);
  }
};

// A map's functions on rows in vectors: Of<Lanes> has them as map_rows.h says.
template <template <class> class Of, class T>
RowFunctions<T> row_functions() {
  using Lanes = VectorLanes<T>;
  using Map = Of<Lanes>;
  return {[](T* z, int64_t n, T number, T* saved) {
            Map::weigh({Lanes(), z, n}, number, saved);
          },
          [](T* z, int64_t n, T number, const T* saved, T* a) {
            Map::again({Lanes(), z, n}, number, saved, a);
          },
          [](T* g, int64_t n, const T* trace, const T* a, T number, const T* saved) {
            return Map::backward({Lanes(), g, n}, trace, a, number, saved);
          }};
}
template <template <class> class Of>
RowMap row_map() {
  using Map = Of<VectorLanes<float>>;
  RowMap map;
  map.f32 = row_functions<Of, float>(), map.f64 = row_functions<Of, double>();
  map.saved = Map::kSaved, map.traced = Map::kTraced;
  return map;
}

}  // namespace headlab::CPU_CAPABILITY
