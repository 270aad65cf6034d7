// Products of small matrices with their columns in vector lanes. Only for .isa.cpp files:
// everything in here belongs to one instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/kernels/row_vectors.h"
#include "core/kernels/team.h"

namespace headlab::CPU_CAPABILITY {

// c[m,x] (+)= sum_k a[m,k] b[k,x] for MR rows and NV vectors of x.
template <int MR, int NV, class T>
void multiply_tile(int64_t K, const Strided<T>& a, const Strided<T>& b, RowMajor<T> c, bool add) {
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

// c[M,N] (+)= a[M,K] b[K,N], N a multiple of kRowLanes and the columns of b dense.
template <class T>
void multiply(const Sizes& n, const Strided<T>& a, const Strided<T>& b, RowMajor<T> c, bool add) {
  constexpr int64_t one = Vec<T>::size();
  in_tiles<2>(n.N / one, [&](int64_t x, auto vectors) {
    in_tiles<4>(n.M, [&](int64_t m, auto rows) {
      multiply_tile<rows, vectors>(n.K, Strided<T>{a.at + m * a.row, a.row, a.column},
                                   Strided<T>{b.at + x * one, b.row, 1},
                                   RowMajor<T>{c.at + m * c.row + x * one, c.row}, add);
    });
  });
}

// rows x [n,width] -> columns of to [width, padded], which has zeros beyond them.
template <class T>
void transpose(const T* x, int64_t row, int64_t n, int64_t width, T* to, int64_t padded) {
  int64_t in_tiles = 0, wide = 0;  // rows, columns
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  if constexpr (sizeof(T) == 4) {
    constexpr int one = Vec<T>::size();
    in_tiles = n / one * one, wide = width / one * one;
    for (int64_t j = 0; j < in_tiles; j += one)
      for (int64_t c = 0; c < wide; c += one)
        at::vec::transpose_mxn<T, one, one>(x + j * row + c, row, to + c * padded + j, padded);
  }
#endif
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t j = c < wide ? in_tiles : 0; j < n; ++j) to[c * padded + j] = x[j * row + c];
    for (int64_t j = n; j < padded; ++j) to[c * padded + j] = 0;
  }
}

}  // namespace headlab::CPU_CAPABILITY
