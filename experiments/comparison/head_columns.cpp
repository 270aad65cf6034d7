#include "experiments/comparison/head_columns.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "experiments/files/h5.h"
#include "experiments/logs/log_walk.h"
#include "experiments/sweeps/sweep_summary.h"

namespace headlab {
namespace {

// The numbers of all heads that are there, in the last complete row of every site.
std::vector<double> last_row(const H5Group& sites, const std::string& statistic) {
  std::vector<double> numbers;
  for (const auto& name : sites.names()) {
    const auto site = sites.group(name);
    const auto records = log_records(site);
    if (!records || records->complete == 0 || !site.has_dataset(statistic)) continue;
    const auto data = site.dataset(statistic);
    auto count = data.extent();
    H5Extent start(count.size(), 0);
    start[0] = records->complete - 1, count[0] = 1;
    for (const float value : data.read_at<float>(start, count))
      if (!std::isnan(value)) numbers.push_back(value);
  }
  return numbers;
}

std::optional<double> mean_of(const std::vector<double>& numbers) {
  return numbers.empty() ? std::nullopt : std::optional(spread_of(numbers).mean);
}

}  // namespace

HeadColumns head_columns(const std::filesystem::path& run) {
  const auto file = H5File::open(find_log(run));
  const auto root = file.root();
  require_log_schema(root);
  if (!root.has_group("heads")) return {};
  const auto sites = root.group("heads");
  HeadColumns columns;
  columns.entropy = mean_of(last_row(sites, "entropy"));
  columns.first_token = mean_of(last_row(sites, "first_token"));
  const auto logits = last_row(sites, "max_logit");
  if (!logits.empty()) columns.max_logit = *std::max_element(logits.begin(), logits.end());
  return columns;
}

}  // namespace headlab
