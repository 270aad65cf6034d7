// Rows of alpha-entmax for one instruction set: the threshold by Newton's method, a row at a time
// in the first-level cache. For 1 < alpha <= 2.
#include "core/kernels/row_vectors.h"

namespace headlab::CPU_CAPABILITY {

// p = w^(1/e), w = [1 + e (y - t)]_+, e = alpha - 1, and q = -dp/dt = p / w.
template <class T>
struct SparsemaxPower {
  explicit SparsemaxPower(T) {}
  void weigh(const Vec<T>& u, Vec<T>& p, Vec<T>& q) const {
    p = u + Vec<T>(1);
    q = Vec<T>::blendv(Vec<T>(0), Vec<T>(1), p > Vec<T>(0));
  }
};
template <class T>
struct Entmax15Power {
  explicit Entmax15Power(T) {}
  void weigh(const Vec<T>& u, Vec<T>& p, Vec<T>& q) const {
    q = u + Vec<T>(1);
    p = q * q;
  }
};
template <class T>
struct EntmaxPower {
  Vec<T> inverse;
  explicit EntmaxPower(T e) : inverse(1 / e) {}
  void weigh(const Vec<T>& u, Vec<T>& p, Vec<T>& q) const {
    p = (u.log1p() * inverse).exp();  // no digit is lost where alpha is nearly 1
    q = p / at::vec::maximum(u + Vec<T>(1), Vec<T>(std::numeric_limits<T>::min()));
  }
};

template <class T, template <class> class Power>
struct Threshold {
  using V = Vec<T>;
  const Power<T> power;
  const T e;

  explicit Threshold(T e_) : power(e_), e(e_) {}

  void weigh(const V& y, T t, V& p, V& q) const {
    power.weigh(at::vec::maximum(V(e) * (y - V(t)), V(-1)), p, q);
  }

  // y [n], the entries that can have weight, their largest 0 -> t. The sum of the weights falls
  // and is convex in t, so that from 0 the steps come nearer without ever passing the solution,
  // until rounding ends them.
  T find(const T* y, int64_t n) const {
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

  // Scores z [S], the largest of them `highest`, become weights, in place; near [S + 16].
  void run(T* z, int64_t S, T highest, T* near) const {
    const T below = -1 / e;  // there the weight at t = 0 is 0
    int64_t n = 0;
    for (int64_t j = 0; j < S; ++j) {
      const T y = z[j] - highest;
      near[n] = y;
      n += static_cast<int64_t>(y > below);
    }
    for (int64_t j = n; j % V::size() != 0; ++j) near[j] = MapRow<T>::kLow;
    const T t = find(near, n);
    V sum(0), p, q;
    for (int64_t j = 0; j < S; j += V::size()) {
      weigh(V::loadu(z + j) - V(highest), t, p, q);
      p.store(z + j);
      sum = sum + p;
    }
    const V one(1 / sum_lanes(sum));
    for (int64_t j = 0; j < S; j += V::size()) (V::loadu(z + j) * one).store(z + j);
  }
};

template <class T>
struct EntmaxRow {
  using V = Vec<T>;

  // numbers: alpha
  static void weigh(T* z, int64_t n, const double* numbers, T*, T*, T* scratch) {
    const MapRow<T> row{z, n};
    const T alpha = static_cast<T>(numbers[0]), highest = row.highest();
    if (highest == MapRow<T>::kLow) return row.clear();
    if (alpha == T(2)) return Threshold<T, SparsemaxPower>(T(1)).run(z, n, highest, scratch);
    if (alpha == T(1.5)) return Threshold<T, Entmax15Power>(T(0.5)).run(z, n, highest, scratch);
    Threshold<T, EntmaxPower>(alpha - 1).run(z, n, highest, scratch);
  }

  static void backward(const T*, const T* a, int64_t n, const double* numbers, const T*, T* g) {
    const MapRow<T> row{g, n};
    const T alpha = static_cast<T>(numbers[0]);
    const V zero(T(0)), power(2 - alpha);
    const auto slope = [&](int64_t j) {
      const V p = V::loadu(a + j);
      const V q = alpha == T(1.5) ? p.sqrt() : alpha == T(2) ? V(T(1)) : (p.log() * power).exp();
      return V::blendv(zero, q, p > zero);
    };
    const T total = row.sum([&](const V&, int64_t j) { return slope(j); });
    if (!(total > 0)) return row.clear();
    const T mean = row.sum([&](const V& g, int64_t j) { return slope(j) * g; }) / total;
    row.each([&](const V& g, int64_t j) { return slope(j) * (g - V(mean)); });
  }
};

RowMap entmax_rows() { return row_map<EntmaxRow>(); }

}  // namespace headlab::CPU_CAPABILITY
