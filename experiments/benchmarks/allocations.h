// What LibTorch allocates on a device while a function runs, backward passes included.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

namespace headlab {

struct Allocations {
  int64_t peak = 0;     // most bytes held at once, beyond those held before
  int64_t largest = 0;  // bytes of the largest single allocation
  int64_t total = 0;    // bytes of all allocations together
};

// Counts where LibTorch's profiler would: on the thread that runs, and where autograd carries its
// state. Memory that is no tensor, such as scratch space of a library, is not counted.
class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  explicit AllocationCounter(c10::DeviceType device) : device_(device) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() != device_) return;
    held_ += bytes;
    counted_.peak = std::max(counted_.peak, held_);
    counted_.largest = std::max(counted_.largest, bytes);
    counted_.total += std::max<int64_t>(bytes, 0);  // below 0: freed
  }
  bool memoryProfilingEnabled() const override { return true; }
  const Allocations& counted() const { return counted_; }

 private:
  c10::DeviceType device_;
  int64_t held_ = 0;
  Allocations counted_;
};

inline Allocations allocations_of(const std::function<void()>& run,
                                  c10::DeviceType device = c10::DeviceType::CPU) {
  const auto counter = std::make_shared<AllocationCounter>(device);
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  run();
  return counter->counted();
}

}  // namespace headlab
