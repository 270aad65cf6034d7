// The streamed row statistics on CUDA: a block a slot.
#include "core/kernels/row_stats_cuda.h"
#include "core/kernels/stats_slots.h"
#include "core/kernels/warp_team.cuh"

namespace headlab {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kEntropies = kMostHeads * kJsRowsPerSlot;

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    row_stats_kernel(RowProblem<T> p, int64_t slots, RowTotals to, int32_t* offsets, T* scratch) {
  __shared__ ColumnTotals totals;
  const auto team = this_team<T>(p.coarse);
  T* room = block_memory(scratch, stats_room<WarpTeam<T>>(p));
  for (int64_t slot = blockIdx.x; slot < slots; slot += gridDim.x)
    stats_slot(team, p, slot,
               {to.sums + slot * kRowStatistics, to.counts + slot * kRowStatistics,
                to.maxima + slot * kRowMaxima},
               offsets + slot * kRowsPerSlot, totals, room);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) js_kernel(RowProblem<T> p, JsGroups to, T* scratch) {
  __shared__ double entropy[kEntropies];
  const auto team = this_team<T>(p.coarse);
  T* room = block_memory(scratch, divergence_room(p));
  for (int64_t slot = blockIdx.x; slot < p.B * to.groups; slot += gridDim.x) {
    const int64_t first = to.start + slot % to.groups * kJsRowsPerSlot * to.stride;
    divergence_slot(team, p, slot / to.groups, first, to.stride, to.sums + slot * p.H * p.H,
                    to.counts + slot * p.H * p.H, entropy, room);
  }
}

// `taken`: shared memory that the kernel has beside its room, in bytes.
template <class T>
BlockLaunch launch_of(int64_t slots, int64_t each, size_t taken) {
  return {slots, each * static_cast<int64_t>(sizeof(T)),
          kSharedOfAll - static_cast<int64_t>(taken)};
}
template <class T>
BlockLaunch rows_launch(const RowProblem<T>& p) {
  return launch_of<T>(row_slots(p), stats_room<WarpTeam<T>>(p), sizeof(ColumnTotals));
}
template <class T>
BlockLaunch js_launch(const RowProblem<T>& p, int64_t groups) {
  return launch_of<T>(p.B * groups, divergence_room(p), kEntropies * sizeof(double));
}

}  // namespace

template <class T>
int64_t row_stats_cuda_scratch(const RowProblem<T>& p) {
  return rows_launch(p).scratch / static_cast<int64_t>(sizeof(T));
}
template <class T>
int64_t js_cuda_scratch(const RowProblem<T>& p, int64_t groups) {
  return js_launch(p, groups).scratch / static_cast<int64_t>(sizeof(T));
}

template <class T>
const char* launch_row_stats(const RowProblem<T>& p, const RowTotals& to, int32_t* offsets,
                             T* scratch, void* stream) {
  const auto how = rows_launch(p);
  row_stats_kernel<<<how.blocks, kThreads, how.shared, static_cast<cudaStream_t>(stream)>>>(
      p, row_slots(p), to, offsets, how.scratch > 0 ? scratch : nullptr);
  return launched();
}

template <class T>
const char* launch_js(const RowProblem<T>& p, const JsGroups& to, T* scratch, void* stream) {
  const auto how = js_launch(p, to.groups);
  js_kernel<<<how.blocks, kThreads, how.shared, static_cast<cudaStream_t>(stream)>>>(
      p, to, how.scratch > 0 ? scratch : nullptr);
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
