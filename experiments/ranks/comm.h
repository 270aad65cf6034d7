// What the processes of one run, its ranks, say to each other, on torch's own engine (c10d: Gloo on
// CPUs, NCCL on GPUs). A run of one process has a Comm, too, which does nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/ranks/launch.h"

namespace headlab {

using at::Tensor;

// Processes of the run are gone, or one has failed. `code`: the exit code that it left; 75 where it
// left none.
class LostRank : public std::runtime_error {
 public:
  LostRank(const std::vector<int>& ranks, int code, const std::string& why);
  int code() const { return code_; }

 private:
  int code_;
};

// Every rank makes the same calls in the same order. Calls that wait for other ranks throw LostRank
// where one of them is gone, and at the latest after the timeout.
class Comm {
 public:
  virtual ~Comm() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }  // which alone reads and writes the run directory

  // In place, of a contiguous tensor: added in the order of the ranks, so that all have the bits
  // that one process has that adds them in this order (unless fast_sum was asked for).
  virtual void sum(Tensor& x) = 0;
  virtual void broadcast(Tensor& x) = 0;  // that of rank 0, in place; contiguous
  std::string broadcast(const std::string& text);
  virtual std::vector<std::string> gather(const std::string& text) = 0;  // of all, in their order

  // Tells the others why this rank is about to end with an error; nothing may be asked afterwards.
  virtual void leave(int exit_code, const std::string& why) noexcept = 0;

 protected:
  Comm(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

// Of a run of one process.
Comm& alone();

struct CommSettings {
  std::chrono::seconds timeout{300};
  at::Device device = at::kCPU;  // of the tensors, beside CPUs
  bool fast_sum = false;         // in the engine's own order: other bits for other numbers of ranks
};

// Meets the others. DeviceError where one of them does not come within the timeout, or the port is
// taken.
std::unique_ptr<Comm> make_comm(const Launch& launch, const CommSettings& settings);

// ConfigError on all ranks where `text` is not the same on all of them; `what` names it.
void require_same(Comm& comm, const std::string& what, const std::string& text);

}  // namespace headlab
