// Attention by blocks of rows on CUDA: a block of a GPU a task, its maps in shared memory where
// they fit, else in scratch. A map's .cu file makes the kernels of the map.
#pragma once

#include "core/kernels/compose_block.h"
#include "core/kernels/warp_team.cuh"

namespace headlab {

constexpr int kComposeThreads = 256;

template <class T, template <class> class Of>
__global__ void __launch_bounds__(kComposeThreads, 1)
    compose_forward_kernel(ComposeProblem<T> p, T* scratch) {
  const auto team = this_team<T>(p.coarse);
  T* room = block_memory(scratch, block_room<WarpTeam<T>>(p, forward_maps(p)));
  for (int64_t task = blockIdx.x; task < compose_tasks(p); task += gridDim.x)
    forward_task(team, p, Of<WarpLanes<T>>(), task, room, static_cast<T*>(nullptr));
}
template <class T, template <class> class Of>
__global__ void __launch_bounds__(kComposeThreads, 1)
    compose_backward_kernel(ComposeProblem<T> p, T* scratch) {
  const auto team = this_team<T>(p.coarse);
  T* room = block_memory(scratch, block_room<WarpTeam<T>>(p, backward_maps(p)));
  for (int64_t task = blockIdx.x; task < compose_tasks(p); task += gridDim.x)
    backward_task(team, p, Of<WarpLanes<T>>(), task, room, static_cast<T*>(nullptr));
}

template <class T>
BlockLaunch compose_launch(const ComposeProblem<T>& p, bool backward) {
  const int64_t maps = backward ? backward_maps(p) : forward_maps(p);
  return {compose_tasks(p), block_room<WarpTeam<T>>(p, maps) * static_cast<int64_t>(sizeof(T)),
          shared_capacity()};
}

template <class T, class Kernel>
const char* launch_compose(Kernel* kernel, const ComposeProblem<T>& p, bool backward, T* scratch,
                           void* stream) {
  const auto how = compose_launch(p, backward);
  if (how.shared > kSharedOfAll) {
    const auto set = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(how.shared));
    if (set != cudaSuccess) return cudaGetErrorString(set);
  }
  kernel<<<how.blocks, kComposeThreads, how.shared, static_cast<cudaStream_t>(stream)>>>(
      p, how.scratch > 0 ? scratch : nullptr);
  return launched();
}

template <class T, template <class> class Of>
RowLaunches<T> row_launches() {
  return {[](const ComposeProblem<T>& p, T* scratch, void* stream) {
            return launch_compose(compose_forward_kernel<T, Of>, p, false, scratch, stream);
          },
          [](const ComposeProblem<T>& p, T* scratch, void* stream) {
            return launch_compose(compose_backward_kernel<T, Of>, p, true, scratch, stream);
          },
          [](const ComposeProblem<T>& p, bool backward) {
            return compose_launch(p, backward).scratch / static_cast<int64_t>(sizeof(T));
          }};
}
// Of<Lanes>: a map of rows (map_rows.h).
template <template <class> class Of>
const RowMapOnCuda* row_map_on_cuda() {
  static const RowMapOnCuda map{row_launches<float, Of>(), row_launches<double, Of>()};
  return &map;
}

}  // namespace headlab
