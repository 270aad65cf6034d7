// The warps of a block of a GPU as a team (team.h).
#pragma once

#include <cuda_runtime.h>
#include <mma.h>

#include <cstring>
#include <type_traits>

#include "core/kernels/team.h"

namespace headlab {

constexpr int kWarpLanes = 32;

// A warp, an entry a lane. It meets before a loop too: the leader may still read what the loop
// overwrites.
template <class T>
struct WarpLanes : OneEntry<T> {
  int lane;

  __device__ bool leader() const { return lane == 0; }

  template <class F>
  __device__ void each(int64_t n, const F& f) const {
    entries(0, n - 1, f);
  }
  template <class F>
  __device__ void entries(int64_t first, int64_t last, const F& f) const {
    __syncwarp();
    for (int64_t j = first + lane; j <= last; j += kWarpLanes) f(j);
    __syncwarp();
  }
  // Butterfly: the sums of both partners are the same, so that all lanes end with the same bits.
  template <class R, class Step>
  __device__ R reduce(int64_t first, int64_t last, R mine, const Step& step) const {
    entries(first, last, [&](int64_t j) { step(mine, j); });
    for (int by = kWarpLanes / 2; by > 0; by /= 2) mine.join(exchanged(mine, by));
    return mine;
  }
  __device__ T sum(T x) const {
    for (int by = kWarpLanes / 2; by > 0; by /= 2) x += __shfl_xor_sync(kAll, x, by);
    return x;
  }
  __device__ T most(T x) const {
    for (int by = kWarpLanes / 2; by > 0; by /= 2)
      x = OneEntry<T>::max(x, __shfl_xor_sync(kAll, x, by));
    return x;
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  template <class R>
  __device__ static R exchanged(R mine, int by) {
    static_assert(sizeof(R) % sizeof(int) == 0);
    int words[sizeof(R) / sizeof(int)];
    memcpy(words, &mine, sizeof(R));
#pragma unroll
    for (int& word : words) word = __shfl_xor_sync(kAll, word, by);
    memcpy(&mine, words, sizeof(R));
    return mine;
  }
};

template <class T>
struct WarpTeam {
  using Number = T;
  using Lanes = WarpLanes<T>;
  static constexpr int64_t kRows = 16;
  static constexpr bool kPadsPanels = false;
  int64_t warp, warps;
  int lane;
  bool coarse;  // float32 factors may be rounded to tf32

  template <class F>
  __device__ void each(int64_t n, const F& f) const {
    for (int64_t item = warp; item < n; item += warps) f(Lanes{{}, lane}, item);
  }
  __device__ void sync() const { __syncthreads(); }

  template <class A, class B, class C>
  __device__ void multiply(int64_t n, const Sizes& sizes, const A& a, const B& b, const C& c,
                           bool add) const {
    const int64_t across = (sizes.N + kTile - 1) / kTile;
    const int64_t tiles = (sizes.M + kTile - 1) / kTile * across;
    for (int64_t at = warp; at < n * tiles; at += warps) {
      const int64_t m = at % tiles / across * kTile, x = at % tiles % across * kTile;
      const Strided<T> left = a(at / tiles), right = b(at / tiles);
      const RowMajor<T> out = c(at / tiles);
      const Sizes left_over{sizes.M - m, sizes.N - x, sizes.K};
      tile(left_over, {left.at + m * left.row, left.row, left.column},
           {right.at + x * right.column, right.row, right.column},
           {out.at + m * out.row + x, out.row}, add);
    }
    sync();
  }
  __device__ static Panel<T> panel(const View<const T>& x, int64_t b, int64_t head, int64_t,
                                   int64_t, T*) {
    return panel_in_place(x, b, head);
  }

 private:
  static constexpr int64_t kTile = 16, kUnit = 8;  // of a product of tensor cores: 16 x 16 x 8

  // c [16,16] or what there is of it.
  __device__ void tile(const Sizes& n, const Strided<T>& a, const Strided<T>& b, RowMajor<T> c,
                       bool add) const {
    int64_t done = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (coarse && n.M >= kTile && n.N >= kTile && loads(c.at, c.row) && loads(a) && loads(b)) {
        done = n.K / kUnit * kUnit;
        by_units(done, a, b, c, add);
        if (done == n.K) return;
        __syncwarp();
        add = true;
      }
    }
    by_lanes({n.M, n.N, n.K - done}, {a.at + done * a.column, a.row, a.column},
             {b.at + done * b.row, b.row, b.column}, c, add);
  }

  // A lane has one column and every other row.
  __device__ void by_lanes(const Sizes& n, const Strided<T>& a, const Strided<T>& b, RowMajor<T> c,
                           bool add) const {
    const int64_t x = lane % kTile, first = lane / kTile;
    constexpr int kOwn = 8;
    T sum[kOwn] = {};
    for (int64_t k = 0; k < n.K; ++k) {
      const T right = x < n.N ? b.at[k * b.row + x * b.column] : T(0);
#pragma unroll
      for (int r = 0; r < kOwn; ++r)
        if (const int64_t m = first + 2 * r; m < n.M)
          sum[r] = OneEntry<T>::fma(a.at[m * a.row + k * a.column], right, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
      if (const int64_t m = first + 2 * r; m < n.M && x < n.N) {
        T& to = c.at[m * c.row + x];
        to = add ? to + sum[r] : sum[r];
      }
  }

  __device__ static bool loads(const T* at, int64_t row) {
    return reinterpret_cast<size_t>(at) % 32 == 0 && row % 8 == 0;
  }
  // One of its dimensions is dense, the other can be loaded from.
  __device__ static bool loads(const Strided<T>& x) {
    return x.column == 1 ? loads(x.at, x.row) : x.row == 1 && loads(x.at, x.column);
  }

  __device__ static void by_units(int64_t K, const Strided<T>& a, const Strided<T>& b,
                                  RowMajor<T> c, bool add) {
    using namespace nvcuda::wmma;
    if (a.column == 1 && b.column == 1) return units<row_major, row_major>(K, a, b, c, add);
    if (a.column == 1) return units<row_major, col_major>(K, a, b, c, add);
    if (b.column == 1) return units<col_major, row_major>(K, a, b, c, add);
    units<col_major, col_major>(K, a, b, c, add);
  }
  template <class OfA, class OfB>
  __device__ static void units(int64_t K, const Strided<T>& a, const Strided<T>& b, RowMajor<T> c,
                               bool add) {
    using namespace nvcuda::wmma;
    fragment<accumulator, kTile, kTile, kUnit, float> sum;
    if (add)
      load_matrix_sync(sum, c.at, c.row, mem_row_major);
    else
      fill_fragment(sum, 0.f);
    for (int64_t k = 0; k < K; k += kUnit) {
      fragment<matrix_a, kTile, kTile, kUnit, precision::tf32, OfA> left;
      fragment<matrix_b, kTile, kTile, kUnit, precision::tf32, OfB> right;
      load_matrix_sync(left, a.at + k * a.column, a.column == 1 ? a.row : a.column);
      load_matrix_sync(right, b.at + k * b.row, b.column == 1 ? b.row : b.column);
#pragma unroll
      for (int i = 0; i < left.num_elements; ++i) left.x[i] = __float_to_tf32(left.x[i]);
#pragma unroll
      for (int i = 0; i < right.num_elements; ++i) right.x[i] = __float_to_tf32(right.x[i]);
      mma_sync(sum, left, right, sum);
    }
    store_matrix_sync(c.at, sum, c.row, mem_row_major);
  }
};

template <class T>
__device__ WarpTeam<T> this_team(bool coarse) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  return {static_cast<int64_t>(threadIdx.x) / kWarpLanes,
          static_cast<int64_t>(blockDim.x) / kWarpLanes, lane, coarse};
}

// The room of this block: `each` elements of scratch, or shared memory where there is none.
template <class T>
__device__ T* block_memory(T* scratch, int64_t each) {
  extern __shared__ __align__(32) double shared[];
  return scratch ? scratch + blockIdx.x * each : reinterpret_cast<T*>(shared);
}

// How a kernel is launched whose blocks have `each` bytes of room: in shared memory where that fits
// in `free` bytes, else in scratch, which some blocks share out among all tasks.
struct BlockLaunch {
  static constexpr int64_t kScratchBlocks = 512;
  int64_t blocks, shared, scratch;  // bytes

  BlockLaunch(int64_t tasks, int64_t each, int64_t free) {
    const bool fits = each <= free;
    blocks = fits || tasks < kScratchBlocks ? tasks : kScratchBlocks;
    shared = fits ? each : 0;
    scratch = fits ? 0 : blocks * each;
  }
};
constexpr int64_t kSharedOfAll = 48 << 10;  // bytes that a block of every GPU has unasked

// Bytes of shared memory that a block of the current device may ask for.
inline int64_t shared_capacity() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess)
    return 0;
  return bytes;
}

inline const char* launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace headlab
