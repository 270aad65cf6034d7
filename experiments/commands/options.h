// Options that several subcommands share.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/attend.h"
#include "experiments/commands/command.h"

namespace headlab {

// --device auto|cpu|cuda[:N], --threads N, --backend auto|eager|sdpa
struct ComputeOptions {
  std::string device = "auto", backend = "auto";
  int threads = 0;  // 0: OMP_NUM_THREADS, else every core

  void add_to(Arguments& a);
  at::Device apply() const;  // sets the number of threads; DeviceError where there is no device
  Backend path() const;
};

at::Device pick_device(const std::string& name);

}  // namespace headlab
