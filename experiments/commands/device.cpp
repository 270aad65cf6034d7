// --device: what it may be, and whether it is there.
#include <fmt/format.h>
#include <torch/cuda.h>

#include <charconv>
#include <string_view>

#include "core/errors.h"
#include "experiments/commands/options.h"

namespace headlab {
namespace {
// The N of "cuda:N", -1 of "cuda"; none: it is neither.
std::optional<int> cuda_index(const std::string& name) {
  const std::string_view cuda = "cuda", word = name;
  if (!word.starts_with(cuda)) return std::nullopt;
  if (word == cuda) return -1;
  const auto number = word.substr(cuda.size());
  int index = 0;
  const auto* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(number.data() + 1, end, index);
  if (!number.starts_with(':') || error != std::errc() || stop != end || index < 0)
    return std::nullopt;
  return index;
}
}  // namespace

at::Device pick_device(const std::string& name) {
  const bool any = name == "auto";
  if (name == "cpu" || (any && !torch::cuda::is_available())) return at::kCPU;
  const auto index = any ? -1 : cuda_index(name);
  if (!index)
    throw ConfigError(fmt::format(
        "--device {}: must be auto, cpu, cuda or cuda:N{}", name,
        name.find(',') == name.npos ? "" : ", of one device; no command computes on several"));
  if (!torch::cuda::is_available())
    throw DeviceError("--device " + name + ": no CUDA device is available; use --device cpu");
  const int count = static_cast<int>(torch::cuda::device_count());
  if (*index >= count)
    throw DeviceError(fmt::format("--device {}: there {} only {} CUDA device{}", name,
                                  count == 1 ? "is" : "are", count, count == 1 ? "" : "s"));
  return *index < 0 ? at::Device(at::kCUDA)
                    : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*index));
}

}  // namespace headlab
