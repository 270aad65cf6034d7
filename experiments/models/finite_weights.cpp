#include "experiments/models/finite_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "core/torch.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

int64_t count_not_finite(const at::Tensor& tensor) {
  if (!at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0) return 0;
  const auto numbers = tensor.detach();
  // A sum of finite numbers may overflow, but it is never finite where one of them is not.
  const auto wide = at::promote_types(numbers.scalar_type(), at::kFloat);
  if (std::isfinite(numbers.sum(wide).item<double>())) return 0;
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
