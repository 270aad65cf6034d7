#include "experiments/ranks/gpu_group.h"

#ifdef USE_C10D_NCCL
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace headlab {

#ifdef USE_C10D_NCCL
c10::intrusive_ptr<c10d::Backend> make_gpu_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, std::chrono::seconds timeout) {
  // Else a thread of NCCL's group ends the process where a rank is lost, with a code of its own.
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", /*replace=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("gpus", store), rank, size, options);
}
#else
c10::intrusive_ptr<c10d::Backend> make_gpu_group(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                 std::chrono::seconds) {
  return {};
}
#endif

}  // namespace headlab
