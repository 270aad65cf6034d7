// The streamed row statistics on CUDA: a block a slot, a warp a row (row_stats_lanes.h).
#include <cuda_runtime.h>

#include <cstring>

#include "core/kernels/row_stats_cuda.h"
#include "core/kernels/row_stats_lanes.h"

namespace headlab {
namespace {

constexpr int kLanes = 32, kWarps = 4, kThreads = kLanes * kWarps;
constexpr int64_t kSharedBytes = 32 << 10;  // scores of a block that lie in shared memory
constexpr int64_t kScratchBlocks = 512;     // blocks that share the scratch of longer ones

// A warp, for the functions of row_stats_lanes.h. It meets before a loop too: the leader may still
// read what the loop overwrites.
struct Warp {
  template <class T>
  using Total = T;
  int lane;

  __device__ bool leader() const { return lane == 0; }

  template <class Step>
  __device__ void each(int64_t first, int64_t last, Step step) const {
    __syncwarp();
    for (int64_t j = first + lane; j <= last; j += kLanes) step(j);
    __syncwarp();
  }
  // Butterfly: the sums of both partners are the same, so that all lanes end with the same bits.
  template <class R, class Step>
  __device__ R reduce(int64_t first, int64_t last, R mine, Step step) const {
    __syncwarp();
    for (int64_t j = first + lane; j <= last; j += kLanes) step(mine, j);
    for (int by = kLanes / 2; by > 0; by /= 2) mine.join(exchanged(mine, by));
    __syncwarp();
    return mine;
  }

 private:
  template <class R>
  __device__ static R exchanged(R mine, int by) {
    static_assert(sizeof(R) % sizeof(int) == 0);
    int words[sizeof(R) / sizeof(int)];
    memcpy(words, &mine, sizeof(R));
#pragma unroll
    for (int& word : words) word = __shfl_xor_sync(0xffffffffu, word, by);
    memcpy(&mine, words, sizeof(R));
    return mine;
  }
};

__device__ Warp this_warp() { return {static_cast<int>(threadIdx.x) % kLanes}; }
__device__ int warp_in_block() { return static_cast<int>(threadIdx.x) / kLanes; }

// This block's room for scores: `each` elements of scratch, or shared memory where there is none.
template <class T>
__device__ T* block_room(T* scratch, int64_t each) {
  extern __shared__ double shared[];
  return scratch ? scratch + blockIdx.x * each : reinterpret_cast<T*>(shared);
}

// The warps' totals of a slot, joined in their order.
struct WarpTotals {
  double sums[kWarps][kRowStatistics], counts[kWarps][kRowStatistics], maxima[kWarps][kRowMaxima];

  __device__ void write(const RowTotals& to, int64_t slot) const {
    for (int s = threadIdx.x; s < kRowStatistics; s += kThreads) {
      double sum = 0, count = 0;
      for (int w = 0; w < kWarps; ++w) sum += sums[w][s], count += counts[w][s];
      to.sums[slot * kRowStatistics + s] = sum;
      to.counts[slot * kRowStatistics + s] = count;
    }
    for (int s = threadIdx.x; s < kRowMaxima; s += kThreads) {
      double highest = kLowest<double>;
      for (int w = 0; w < kWarps; ++w) highest = fmax(highest, maxima[w][s]);
      to.maxima[slot * kRowMaxima + s] = highest;
    }
  }
};

// Five blocks a multiprocessor: ptxas alone would spend registers on loops that are not the long
// ones.
template <class T>
__global__ void __launch_bounds__(kThreads, 5)
    row_stats_kernel(RowProblem<T> p, int64_t slots, RowTotals to, int32_t* offsets, T* scratch) {
  __shared__ WarpTotals totals;
  const Warp lanes = this_warp();
  const int warp = warp_in_block();
  const int64_t blocks = slots / (p.B * p.H);
  T* z = block_room(scratch, kWarps * p.keys) + warp * p.keys;
  const RowTotals out{totals.sums[warp], totals.counts[warp], totals.maxima[warp]};
  for (int64_t slot = blockIdx.x; slot < slots; slot += gridDim.x) {
    lanes.each(0, kRowStatistics - 1, [&](int64_t s) { out.sums[s] = out.counts[s] = 0; });
    lanes.each(0, kRowMaxima - 1, [&](int64_t s) { out.maxima[s] = kLowest<double>; });
    for (int64_t r = warp; r < kRowsPerSlot; r += kWarps) {
      const int64_t i = slot % blocks * kRowsPerSlot + r;
      int32_t offset = kNoRow;
      if (i < p.queries) {
        const auto row = scored_row(p, slot / (p.H * blocks), slot / blocks % p.H, i, z);
        offset = count_row(lanes, row, out);
      }
      if (lanes.leader()) offsets[slot * kRowsPerSlot + r] = offset;
    }
    __syncthreads();
    totals.write(to, slot);
    __syncthreads();
  }
}

// A block takes the rows of a slot one after the other: the weights of all heads, then all pairs.
template <class T>
__global__ void js_kernel(RowProblem<T> p, JsGroups to, T* scratch) {
  __shared__ double entropy[kMostHeads];
  const Warp lanes = this_warp();
  T* weights = block_room(scratch, p.H * p.keys);  // [H,S]
  for (int64_t slot = blockIdx.x; slot < p.B * to.groups; slot += gridDim.x) {
    const int64_t b = slot / to.groups, first = slot % to.groups * kJsRowsPerSlot;
    const int64_t counted = counted_queries(p, b);
    double *sum = to.sums + slot * p.H * p.H, *count = to.counts + slot * p.H * p.H;
    for (int64_t n = threadIdx.x; n < p.H * p.H; n += kThreads) sum[n] = count[n] = 0;
    __syncthreads();
    for (int64_t r = first; r < first + kJsRowsPerSlot && to.start + r * to.stride < counted; ++r) {
      const int64_t i = to.start + r * to.stride;
      for (int64_t h = warp_in_block(); h < p.H; h += kWarps) {
        const double nats = weigh_keys(lanes, scored_row(p, b, h, i, weights + h * p.keys));
        if (lanes.leader()) entropy[h] = nats;
      }
      __syncthreads();
      for (int64_t pair = warp_in_block(); pair < p.H * p.H; pair += kWarps) {
        const int64_t h = pair / p.H, g = pair % p.H;
        if (g < h || entropy[h] < 0 || entropy[g] < 0) continue;
        const double mixed = g == h ? entropy[h]
                                    : mixture_entropy(lanes, weights + h * p.keys,
                                                      weights + g * p.keys, key_span(p, b, i));
        if (!lanes.leader()) continue;
        sum[h * p.H + g] += mixed - (entropy[h] + entropy[g]) / 2;
        count[h * p.H + g] += 1;
        if (g != h) sum[g * p.H + h] = sum[h * p.H + g], count[g * p.H + h] += 1;
      }
      __syncthreads();
    }
  }
}

int64_t blocks_for(int64_t slots, bool scratch) {
  return scratch && slots > kScratchBlocks ? kScratchBlocks : slots;
}

int64_t scratch_for(int64_t slots, int64_t each, size_t width) {
  return each * static_cast<int64_t>(width) <= kSharedBytes ? 0 : blocks_for(slots, true) * each;
}

const char* launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

template <class T>
int64_t row_stats_cuda_scratch(const RowProblem<T>& p) {
  return scratch_for(row_slots(p), kWarps * p.keys, sizeof(T));
}

template <class T>
int64_t js_cuda_scratch(const RowProblem<T>& p, int64_t groups) {
  return scratch_for(p.B * groups, p.H * p.keys, sizeof(T));
}

template <class T>
const char* launch_row_stats(const RowProblem<T>& p, const RowTotals& to, int32_t* offsets,
                             T* scratch, void* stream) {
  const bool far = row_stats_cuda_scratch(p) > 0;
  const size_t shared = far ? 0 : kWarps * p.keys * sizeof(T);
  row_stats_kernel<<<blocks_for(row_slots(p), far), kThreads, shared,
                     static_cast<cudaStream_t>(stream)>>>(p, row_slots(p), to, offsets,
                                                          far ? scratch : nullptr);
  return launched();
}

template <class T>
const char* launch_js(const RowProblem<T>& p, const JsGroups& to, T* scratch, void* stream) {
  const bool far = js_cuda_scratch(p, to.groups) > 0;
  const size_t shared = far ? 0 : p.H * p.keys * sizeof(T);
  js_kernel<<<blocks_for(p.B * to.groups, far), kThreads, shared,
              static_cast<cudaStream_t>(stream)>>>(p, to, far ? scratch : nullptr);
  return launched();
}

#define HEADLAB_INSTANTIATE(T)                                                                \
  template int64_t row_stats_cuda_scratch(const RowProblem<T>&);                              \
  template int64_t js_cuda_scratch(const RowProblem<T>&, int64_t);                            \
  template const char* launch_row_stats(const RowProblem<T>&, const RowTotals&, int32_t*, T*, \
                                        void*);                                               \
  template const char* launch_js(const RowProblem<T>&, const JsGroups&, T*, void*);
HEADLAB_INSTANTIATE(float)
HEADLAB_INSTANTIATE(double)

}  // namespace headlab
