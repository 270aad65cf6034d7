// Measures what torch allocates on the CPU while a function runs, backward passes included.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <functional>
#include <memory>

namespace headlab::testing {

struct Memory {
  int64_t peak = 0;     // most bytes held at once, beyond those held before
  int64_t largest = 0;  // bytes of the largest single allocation
};

// Counts where torch's profiler would: on this thread, and where autograd carries its state.
class MemoryCounter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    held_ += bytes;
    memory_.peak = std::max(memory_.peak, held_);
    memory_.largest = std::max(memory_.largest, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  const Memory& memory() const { return memory_; }

 private:
  int64_t held_ = 0;
  Memory memory_;
};

inline Memory memory_of(const std::function<void()>& run) {
  const auto counter = std::make_shared<MemoryCounter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  run();
  return counter->memory();
}

}  // namespace headlab::testing
