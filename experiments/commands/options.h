// Options that several subcommands share; a command visits them among its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/attention/call/context.h"
#include "experiments/commands/command.h"
#include "experiments/ranks/launch.h"
#include "experiments/runs/open_run.h"

namespace headlab {

// --device auto|cpu|cuda[:N], --threads N, --backend auto|flash|sdpa|rows|eager
struct ComputeOptions {
  std::string device = "auto", backend = "auto";
  int threads = 0;  // 0: OMP_NUM_THREADS, else every core

  void visit(Arguments& a);
  // Sets the number of threads. DeviceError where there is no device.
  Compute apply(const Launch& launch = {}) const;
};

// The split of `run.data` that is called so, or the usual one; it has examples, or DataError names
// the run.
Split split_of(const OpenedRun& run, const std::string& name,
               const std::optional<std::string>& split);
// open_run() that says on stderr where the sources of the run's kinds of heads were others.
OpenedRun open_named_run(const std::string& run, const at::Device& device);
// Adds "code": in what the kinds of heads of this program and of the run's differ; nothing where
// they do not.
void add_code(nlohmann::ordered_json& object, const OpenedRun& run);

// {"split", "data": the files that were read}, and "code" as add_code() has it
nlohmann::ordered_json examples_json(const OpenedRun& run, Split split);

// --split, --batches, --batch: the examples that a command measures on.
struct MeasureOptions {
  std::optional<std::string> split;
  int64_t batches = 20, batch = 0;  // batches 0: the whole split; batch 0: the run's eval_batch

  void visit(Arguments& a);
  Split resolve(const OpenedRun& run, const std::string& name);  // split_of(); sets `batch`
  std::vector<std::string> words() const;  // of a file's name; none: as many as usual

 private:
  bool own_batch_ = false;  // --batch was given
};

// RunError where `out`, a new run's directory, holds a run already; empty: none is wanted.
void require_free(const std::string& out);

// Several processes on this machine take its GPUs in turn, unless `name` says which.
at::Device pick_device(const std::string& name, const Launch& launch);

}  // namespace headlab
