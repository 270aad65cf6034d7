// Products of small matrices with their columns in vector lanes. Only for .isa.cpp files:
// everything in here belongs to one instruction set.
#pragma once

#include <cstdint>

#include "core/kernels/lanes.h"

namespace headlab::CPU_CAPABILITY {

// A matrix whose rows or columns need not be dense.
template <class T>
struct Strided {
  const T* at;
  int64_t row, column;
};

// A matrix whose columns are dense.
template <class T>
struct RowMajor {
  T* at;
  int64_t row;
  RowMajor from(int64_t m, int64_t x) const { return {at + m * row + x, row}; }
};

struct Sizes {
  int64_t M, N, K;
};

// c[m,x] (+)= sum_k a[m,k] b[k,x] for MR rows and NV vectors of x.
template <int MR, int NV, class T>
void multiply_tile(int64_t K, const Strided<T>& a, RowMajor<const T> b, RowMajor<T> c, bool add) {
  using V = Vec<T>;
  V sum[MR][NV];
  for (int m = 0; m < MR; ++m)
    for (int x = 0; x < NV; ++x)
      sum[m][x] = add ? V::loadu(c.at + m * c.row + x * V::size()) : V(T(0));
  for (int64_t k = 0; k < K; ++k) {
    V right[NV];
    for (int x = 0; x < NV; ++x) right[x] = V::loadu(b.at + k * b.row + x * V::size());
    for (int m = 0; m < MR; ++m) {
      const V left(a.at[m * a.row + k * a.column]);
      for (int x = 0; x < NV; ++x) sum[m][x] = at::vec::fmadd(left, right[x], sum[m][x]);
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int x = 0; x < NV; ++x) sum[m][x].store(c.at + m * c.row + x * V::size());
}

template <int NV, class T>
void multiply_columns(const Sizes& n, Strided<T> a, RowMajor<const T> b, RowMajor<T> c, bool add) {
  int64_t m = 0;
  for (; m + 4 <= n.M; m += 4, a.at += 4 * a.row)
    multiply_tile<4, NV>(n.K, a, b, c.from(m, 0), add);
  for (; m < n.M; ++m, a.at += a.row) multiply_tile<1, NV>(n.K, a, b, c.from(m, 0), add);
}

// c[M,N] (+)= a[M,K] b[K,N], N a multiple of kComposeLanes.
template <class T>
void multiply(const Sizes& n, const Strided<T>& a, RowMajor<const T> b, RowMajor<T> c,
              bool add = false) {
  constexpr int64_t one = Vec<T>::size(), two = 2 * one;
  int64_t x = 0;
  for (; x + two <= n.N; x += two) multiply_columns<2>(n, a, b.from(0, x), c.from(0, x), add);
  for (; x < n.N; x += one) multiply_columns<1>(n, a, b.from(0, x), c.from(0, x), add);
}

}  // namespace headlab::CPU_CAPABILITY
