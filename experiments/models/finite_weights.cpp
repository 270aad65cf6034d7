#include "experiments/models/finite_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/attention/precision.h"
#include "core/torch.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

int64_t count_not_finite(const at::Tensor& tensor) {
  constexpr int64_t kAtOnce = 1 << 20;  // a CPU sums half types by a copy in float32
  if (!at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0) return 0;
  const auto numbers = tensor.detach();
  const bool in_parts = numbers.is_cpu() && numbers.is_contiguous();
  const auto parts = in_parts ? numbers.view(-1).split(kAtOnce) : std::vector{numbers};
  // A sum of finite numbers may overflow, but it is never finite where one of them is not.
  if (std::ranges::all_of(parts, sums_are_finite)) return 0;
  return numbers.isfinite().logical_not().sum().item<int64_t>();
}

}  // namespace

std::string not_finite(const NamedTensors& tensors) {
  constexpr size_t kNamed = 5;
  std::vector<std::string> found;
  size_t lost = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto n = count_not_finite(tensor);
    if (n == 0 || ++lost > kNamed) continue;
    found.push_back(fmt::format("{} ({} of {} numbers)", name, n, tensor.numel()));
  }
  if (lost == 0) return "";
  const auto more = lost > kNamed ? fmt::format(", and {} more", lost - kNamed) : "";
  return fmt::format("{} of {} tensors hold NaN or infinity: {}{}", lost, tensors.size(),
                     fmt::join(found, ", "), more);
}

void warn_if_not_finite(const std::string& owner, const NamedTensors& tensors) {
  if (const auto what = not_finite(tensors); !what.empty()) tell("{}: {}", owner, what);
}

}  // namespace headlab
