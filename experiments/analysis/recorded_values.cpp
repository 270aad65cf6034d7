#include "experiments/analysis/recorded_values.h"

#include <numeric>

#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {

std::map<std::string, std::vector<double>> recorded_values(
    const std::string& kind, int64_t heads, const std::map<std::string, Tensor>& recorded) {
  const auto& [table, report] = head_kind(kind).recorded;
  TORCH_CHECK(report, "'", kind, "' heads have no statistics of recorded arrays");
  std::vector<int64_t> ids(heads);
  std::iota(ids.begin(), ids.end(), 0);
  HeadProbe probe;
  probe.statistics = true;
  probe.enter(
      {.heads = heads, .head_ids = ids, .alive = std::vector<bool>(heads, true), .own = table});
  report(probe, recorded);
  auto values = probe.values(0);
  std::map<std::string, std::vector<double>> found;
  for (const auto& s : table) found[s.name] = values.at(s.name);
  return found;
}

}  // namespace headlab
