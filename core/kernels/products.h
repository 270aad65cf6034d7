// Products of small matrices with their columns in vector lanes. Only for .isa.cpp files:
// everything in here belongs to one instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/kernels/row_vectors.h"

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

// Cuts 0 .. n - 1 into tiles of `size` and, of what is left, of 1: work(first, size of the tile).
template <int size, class Work>
void in_tiles(int64_t n, const Work& work) {
  int64_t at = 0;
  for (; at + size <= n; at += size) work(at, std::integral_constant<int, size>());
  for (; at < n; ++at) work(at, std::integral_constant<int, 1>());
}

// c[M,N] (+)= a[M,K] b[K,N], N a multiple of kRowLanes.
template <class T>
void multiply(const Sizes& n, const Strided<T>& a, RowMajor<const T> b, RowMajor<T> c,
              bool add = false) {
  constexpr int64_t one = Vec<T>::size();
  in_tiles<2>(n.N / one, [&](int64_t x, auto vectors) {
    in_tiles<4>(n.M, [&](int64_t m, auto rows) {
      multiply_tile<rows, vectors>(n.K, {a.at + m * a.row, a.row, a.column}, b.from(0, x * one),
                                   c.from(m, x * one), add);
    });
  });
}

}  // namespace headlab::CPU_CAPABILITY
