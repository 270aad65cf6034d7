#include "experiments/commands/sweep_report.h"

#include <fmt/format.h>

#include "experiments/system/memory.h"
#include "experiments/text/duration.h"
#include "experiments/text/number_text.h"

namespace headlab {

using Json = nlohmann::ordered_json;

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
