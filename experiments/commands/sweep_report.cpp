#include "experiments/commands/sweep_report.h"

#include <fmt/format.h>
#include <torch/cuda.h>

#include <cstdlib>

#include "experiments/system/memory.h"
#include "experiments/system/visible_gpus.h"
#include "experiments/text/duration.h"
#include "experiments/text/number_text.h"

namespace headlab {

using Json = nlohmann::ordered_json;

namespace {

// By their names in CUDA_VISIBLE_DEVICES: numbers, or what stands there now.
std::vector<std::string> gpus_for(const std::string& device) {
  if ((device != "auto" && device != "cuda") || !torch::cuda::is_available()) return {};
  const char* given = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible_gpus(static_cast<int64_t>(torch::cuda::device_count()), given ? given : "");
}

}  // namespace

SweepOrders orders_here(const FrozenSweep& sweep, int64_t jobs, int64_t ranks,
                        const std::string& device) {
  auto gpus = gpus_for(device);
  const auto threads = threads_of(sweep, jobs, std::ssize(gpus), ranks);
  return {.jobs = threads.jobs,
          .ranks = ranks,
          .gpus = std::move(gpus),
          .environment = threads.environment(),
          .device = device};
}

Report report_of(const std::string& what, const std::filesystem::path& folder,
                 const std::vector<ConfigCost>& costs, int64_t jobs) {
  Report report{.object = {{what, folder.string()}, {"configs", Json::array()}}, .text = {}};
  double flops = 0, bytes = 0, seconds = 0;
  int64_t points = 0, left = 0;
  for (const auto& cost : costs) {
    const int64_t to_train = cost.points - cost.finished;
    const auto count = static_cast<double>(to_train);
    points += cost.points, left += to_train;
    flops += count * cost.flops, bytes += count * cost.bytes, seconds += count * cost.seconds;
    report.object["configs"].push_back({{"point", cost.label},
                                        {"points", cost.points},
                                        {"finished", cost.finished},
                                        {"parameters", cost.parameters},
                                        {"steps", cost.steps},
                                        {"flops", cost.flops},
                                        {"bytes", cost.bytes},
                                        {"seconds", cost.seconds}});
    report.text +=
        fmt::format("{}  {} points, {} finished; each {} steps, {} FLOPs, {}, {}\n", cost.label,
                    cost.points, cost.finished, cost.steps, number_text(cost.flops, "{:.3g}"),
                    readable_bytes(cost.bytes), duration_text(cost.seconds));
  }
  report.object["points"] = points;
  report.object["left"] = left;
  report.object["flops"] = flops;
  report.object["bytes"] = bytes;
  report.object["hours"] = seconds / 3600;
  report.object["jobs"] = jobs;
  report.text += fmt::format(
      "{} points, {} to train: {} FLOPs, {} on disk at most, {} one after another; with {} at "
      "once {} at best; the last evaluation of each comes on top\n",
      points, left, number_text(flops, "{:.3g}"), readable_bytes(bytes), duration_text(seconds),
      jobs, duration_text(seconds / static_cast<double>(jobs)));
  return report;
}

}  // namespace headlab
