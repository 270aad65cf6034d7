// The engine of sums between GPUs: NCCL, in builds with CUDA.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace headlab {

// Its calls fail after the timeout and leave the process alive. Builds without CUDA have no tensors
// on GPUs, and no such group either.
c10::intrusive_ptr<c10d::Backend> make_gpu_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, std::chrono::seconds timeout);

}  // namespace headlab
