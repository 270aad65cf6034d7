#include "experiments/analysis/route_values.h"

#include <numeric>

#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {

std::map<std::string, std::vector<double>> route_values(const Routes& routes,
                                                        const Tensor& query_length) {
  const int64_t H = routes.gates.size(2);
  std::vector<int64_t> heads(H);
  std::iota(heads.begin(), heads.end(), 0);
  HeadProbe probe;
  probe.statistics = true;
  probe.enter({.heads = H,
               .head_ids = heads,
               .alive = std::vector<bool>(H, true),
               .own = route_statistics()});
  report_routes(probe, routes, query_length);
  auto values = probe.values(0);
  std::map<std::string, std::vector<double>> of_routes;
  for (const auto& s : route_statistics()) of_routes[s.name] = values.at(s.name);
  return of_routes;
}

}  // namespace headlab
