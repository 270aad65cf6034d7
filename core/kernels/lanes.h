// Lanes share the entries of one row: vectors of an instruction set on a CPU, a warp on a GPU, one
// after the other in tests. What is done to a row is written once, for any of them.
//
// `Lanes` offers
//   Number                  the type T of an entry
//   X                       what a lane holds of a row: one entry, or a vector of entries
//   load(p), store(p, x)    of an X;  load(p, n): of n entries or more, 0 beyond them
//   from(start)             start, start + 1, ... of an X
//   exp, near_exp, log, log1p, sqrt, abs (x);  max(a, b), which keeps NaN;  fma(a, b, c) = a b + c
//   where(x > y, a, b)      a where the comparison holds, else b
//   add(to, x), raise(to, x)
//                           adds the entries of an X to doubles, or keeps the larger of both
//   each(n, f)              f(j) for each X, at entries j, of n entries: whole vectors
//   entries(first, last, f) f(j) for each entry first .. last
//   sum(x), most(x)         over all lanes; each gets it
//   reduce(first, last, R zero, step)
//                           step(R&, j) for each entry, dealt out to the lanes, whose R are joined
//                           by R::join, which must be commutative; each gets the result
//   leader()                true on one lane, which writes what leaves the row
// What stands outside of each() and entries() runs on every lane alike, and after them every lane
// sees what the others wrote.
//
// The code of several instruction sets is linked into one program: what is not a template of its
// Lanes is static, so that none of them takes the copy of another.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/kernels/attention_rows.h"

namespace headlab {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();
template <class T>
constexpr T kTiny = std::numeric_limits<T>::min();

// X of lanes that hold one entry each.
template <class T>
struct OneEntry {
  using Number = T;
  using X = T;

  static HEADLAB_DEVICE X load(const T* p) { return *p; }
  static HEADLAB_DEVICE X load(const T* p, int64_t n) { return n > 0 ? *p : T(0); }
  static HEADLAB_DEVICE X from(T start) { return start; }
  static HEADLAB_DEVICE void store(T* p, X x) { *p = x; }
  static HEADLAB_DEVICE X exp(X x) { return std::exp(x); }
  static HEADLAB_DEVICE X near_exp(X x) { return std::exp(x); }
  static HEADLAB_DEVICE X log(X x) { return std::log(x); }
  static HEADLAB_DEVICE X log1p(X x) { return std::log1p(x); }
  static HEADLAB_DEVICE X sqrt(X x) { return std::sqrt(x); }
  static HEADLAB_DEVICE X abs(X x) { return std::fabs(x); }
  static HEADLAB_DEVICE X max(X a, X b) { return a > b || std::isnan(a) ? a : b; }
  static HEADLAB_DEVICE X fma(X a, X b, X c) { return std::fma(a, b, c); }
  static HEADLAB_DEVICE X where(bool holds, X a, X b) { return holds ? a : b; }
  static HEADLAB_DEVICE void add(double* to, X x) { *to += x; }
  static HEADLAB_DEVICE void raise(double* to, X x) { *to = x > *to ? x : *to; }
};

// What Lanes of a single thread do entry by entry.
template <class Lanes>
struct OneThread {
  static bool leader() { return true; }
  template <class F>
  static void entries(int64_t first, int64_t last, const F& f) {
    for (int64_t j = first; j <= last; ++j) f(j);
  }
  template <class R, class Step>
  static R reduce(int64_t first, int64_t last, R total, const Step& step) {
    for (int64_t j = first; j <= last; ++j) step(total, j);
    return total;
  }
};

// One lane, for tests: the kernels of a GPU without one.
template <class T>
struct SerialLanes : OneEntry<T>, OneThread<SerialLanes<T>> {
  template <class F>
  static void each(int64_t n, const F& f) {
    for (int64_t j = 0; j < n; ++j) f(j);
  }
  static T sum(T x) { return x; }
  static T most(T x) { return x; }
};

}  // namespace headlab
