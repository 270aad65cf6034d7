// Rows of alpha-entmax: the threshold by Newton's method, a row at a time in the first-level cache.
// Only for .isa.cpp files.
#pragma once

#include <cstdint>
#include <limits>

#include "core/kernels/lanes.h"

namespace headlab::CPU_CAPABILITY {

// p = w^(1/e), w = [1 + e (y - t)]_+, e = alpha - 1, and q = -dp/dt = p / w.
template <class T>
struct Sparsemax {
  explicit Sparsemax(T) {}
  void weigh(const Vec<T>& u, Vec<T>& p, Vec<T>& q) const {
    p = u + Vec<T>(1);
    q = Vec<T>::blendv(Vec<T>(0), Vec<T>(1), p > Vec<T>(0));
  }
};
template <class T>
struct Entmax15 {
  explicit Entmax15(T) {}
  void weigh(const Vec<T>& u, Vec<T>& p, Vec<T>& q) const {
    q = u + Vec<T>(1);
    p = q * q;
  }
};
template <class T>
struct Entmax {
  Vec<T> inverse;
  explicit Entmax(T e) : inverse(1 / e) {}
  void weigh(const Vec<T>& u, Vec<T>& p, Vec<T>& q) const {
    p = (u.log1p() * inverse).exp();  // no digit is lost where alpha is nearly 1
    q = p / at::vec::maximum(u + Vec<T>(1), Vec<T>(std::numeric_limits<T>::min()));
  }
};

template <class T, template <class> class Power>
struct Row {
  using V = Vec<T>;
  const Power<T> power;
  const T e;

  explicit Row(T e_) : power(e_), e(e_) {}

  void weigh(const V& y, T t, V& p, V& q) const {
    power.weigh(at::vec::maximum(V(e) * (y - V(t)), V(-1)), p, q);
  }

  // y [n], the entries that can have weight, their largest 0 -> t. The sum of the weights falls
  // and is convex in t, so that from 0 the steps come nearer without ever passing the solution,
  // until rounding ends them.
  T threshold(const T* y, int64_t n) const {
    T t = 0;
    for (int step = 0; step < 100; ++step) {
      V sum(0), slope(0), p, q;
      for (int64_t j = 0; j < n; j += V::size()) {
        weigh(V::loadu(y + j), t, p, q);
        sum = sum + p, slope = slope + q;
      }
      const T next = t + (sum_lanes(sum) - 1) / sum_lanes(slope);
      if (!(next > t)) break;
      t = next;
    }
    return t;
  }

  void run(const T* z, int64_t S, T* out, T* near) const {
    T highest = z[0];
    for (int64_t j = 1; j < S; ++j) highest = z[j] > highest ? z[j] : highest;
    const T below = -1 / e;  // there the weight at t = 0 is 0
    int64_t n = 0;
    for (int64_t j = 0; j < S; ++j) {
      near[n] = z[j] - highest;
      n += near[n] > below;
    }
    for (int64_t j = n; j % V::size() != 0; ++j) near[j] = -std::numeric_limits<T>::infinity();
    const T t = threshold(near, n);
    V sum(0), p, q;
    for (int64_t j = 0; j < S; j += V::size()) {
      const int64_t lanes = S - j < V::size() ? S - j : V::size();
      weigh(V::loadu(z + j, lanes) - V(highest), t, p, q);
      p = V::set(V(0), p, lanes);
      p.store(out + j, static_cast<int>(lanes));
      sum = sum + p;
    }
    const V one = V(1 / sum_lanes(sum));
    for (int64_t j = 0; j < S; j += V::size()) {
      const int64_t lanes = S - j < V::size() ? S - j : V::size();
      (V::loadu(out + j, lanes) * one).store(out + j, static_cast<int>(lanes));
    }
  }
};

template <class T>
void entmax(const T* z, int64_t S, T alpha, T* p, T* scratch) {
  if (alpha == T(2)) return Row<T, Sparsemax>(T(1)).run(z, S, p, scratch);
  if (alpha == T(1.5)) return Row<T, Entmax15>(T(0.5)).run(z, S, p, scratch);
  Row<T, Entmax>(alpha - 1).run(z, S, p, scratch);
}

}  // namespace headlab::CPU_CAPABILITY
