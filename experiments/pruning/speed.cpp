#include "experiments/pruning/speed.h"

#include <torch/cuda.h>

#include <algorithm>
#include <cmath>

#include "core/torch.h"
#include "experiments/system/stopwatch.h"

namespace headlab {
namespace {

// Between neighbours in order, as numpy.quantile does.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

}  // namespace

Speeds time_by_turns(const std::function<double()>& masked, const std::function<double()>& sliced,
                     int64_t repeats) {
  Speeds speeds;
  for (int64_t n = 0; n < repeats; ++n) {
    if (n % 2 == 0) speeds.masked.push_back(masked());
    speeds.sliced.push_back(sliced());
    if (n % 2 == 1) speeds.masked.push_back(masked());
  }
  return speeds;
}

Speeds compare_speed(Model& masked, Model& sliced, const Batch& batch, int64_t repeats,
                     Backend backend) {
  torch::InferenceMode inference;
  const auto time = [&](Model& model) {
    const Stopwatch watch;
    model.forward(batch, {.backend = backend});
    if (batch.input().is_cuda()) torch::cuda::synchronize();
    return watch.seconds();
  };
  time(masked), time(sliced);  // warm
  return time_by_turns([&] { return time(masked); }, [&] { return time(sliced); }, repeats);
}

TimeSaved time_saved(const Speeds& speeds) {
  TORCH_CHECK(!speeds.masked.empty() && speeds.masked.size() == speeds.sliced.size(),
              "times come in pairs: ", speeds.masked.size(), " and ", speeds.sliced.size());
  std::vector<double> shares;
  for (size_t n = 0; n < speeds.masked.size(); ++n)
    shares.push_back(1 - speeds.sliced[n] / speeds.masked[n]);
  return {.masked = quantile(speeds.masked, 0.5),
          .sliced = quantile(speeds.sliced, 0.5),
          .share = quantile(shares, 0.5),
          .low = quantile(shares, 0.25),
          .high = quantile(shares, 0.75),
          .pairs = std::ssize(shares)};
}

}  // namespace headlab
