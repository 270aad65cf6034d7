// Options that several subcommands share; a command visits them among its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/attention/attend.h"
#include "experiments/commands/command.h"
#include "experiments/runs/open_run.h"

namespace headlab {

// --device auto|cpu|cuda[:N], --threads N, --backend auto|eager|sdpa
struct ComputeOptions {
  std::string device = "auto", backend = "auto";
  int threads = 0;  // 0: OMP_NUM_THREADS, else every core

  void visit(Arguments& a);
  at::Device apply() const;  // sets the number of threads; DeviceError where there is no device
  Backend path() const;
};

// --split, --batches, --batch: the examples that a command measures on.
struct MeasureOptions {
  std::string split = "val";
  int64_t batches = 20, batch = 0;  // batches 0: the whole split; batch 0: the run's eval_batch

  void visit(Arguments& a);
  // The split, which has examples (DataError naming the run where not); sets `batch`.
  Split resolve(const OpenedRun& run, const std::string& name);
};

// RunError where `out`, a new run's directory, holds a run already; empty: none is wanted.
void require_free(const std::string& out);

at::Device pick_device(const std::string& name);

}  // namespace headlab
