#include "experiments/benchmarks/machine_speed.h"

#include <algorithm>

#include "core/attention/layers.h"
#include "core/torch.h"
#include "experiments/benchmarks/turns.h"
#include "experiments/system/memory.h"

namespace headlab {
namespace {

constexpr int64_t kSmallest = 512, kLargest = 8192;
constexpr double kCostOfNext = 8;          // times as long as a product of half the size
constexpr int64_t kCopiedBytes = 1 << 28;  // more than caches hold

// Seconds of the product of two matrices [size,size].
double product_seconds(const at::Device& device, at::ScalarType type, int64_t size,
                       double seconds) {
  const auto options = at::TensorOptions().device(device).dtype(type);
  const auto a = at::randn({size, size}, options), b = at::randn({size, size}, options);
  const auto turn = [&](const auto& multiply) {
    return shortest_of_turn([&] { return timed(device, multiply); }, seconds);
  };
  const double best = turn([&] { at::mm(a, b); });
  if (!device.is_cpu() || type != at::kFloat) return best;
  return std::min(best, turn([&] { product(a, b); }));
}

void measure_products(MachineSpeed& found, const at::Device& device, bool bf16, double seconds) {
  for (int64_t size = kSmallest; size <= kLargest; size *= 2) {
    const double took =
        product_seconds(device, bf16 ? at::kBFloat16 : at::kFloat, size, seconds / 2);
    const auto n = static_cast<double>(size);
    const double speed = 2 * n * n * n / took;
    if (speed > found.flops) found.flops = speed, found.sizes = size, found.bf16 = bf16;
    if (kCostOfNext * took > 2 * seconds) break;
  }
}

}  // namespace

MachineSpeed measure_machine(const c10::Device& device, bool bf16, double seconds) {
  const at::NoGradGuard no_grad;
  MachineSpeed found;
  measure_products(found, device, false, seconds);
  if (bf16) measure_products(found, device, true, seconds);
  if (device.is_cpu()) require_memory(2.0 * kCopiedBytes, "a copy to measure memory with");
  const auto from = at::ones({kCopiedBytes}, at::TensorOptions().device(device).dtype(at::kByte));
  const auto to = at::zeros_like(from);
  found.bytes = 2.0 * kCopiedBytes /
                shortest_of_turn([&] { return timed(device, [&] { to.copy_(from); }); }, seconds);
  return found;
}

}  // namespace headlab
