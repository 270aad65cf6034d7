#include "experiments/runs/bounded_tensors.h"

#include <c10/core/CPUAllocator.h>

#include "experiments/system/memory.h"

namespace headlab {
namespace {

constexpr size_t kLarge = size_t{64} << 20;  // asking costs what filling a hundredth of it does

class BoundedAllocator final : public c10::Allocator {
 public:
  explicit BoundedAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= kLarge) require_memory(static_cast<double>(bytes), "a tensor");
    return inner_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return inner_.is_simple_data_ptr(data);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_.copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& inner_;
};

}  // namespace

void bound_tensors() {
  static BoundedAllocator bounded(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(&bounded);
}

}  // namespace headlab
