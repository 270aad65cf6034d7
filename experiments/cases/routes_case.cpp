// Format routes-1: statistics of the routes that tokens took through the heads of some layers.
#include "core/torch.h"
#include "experiments/analysis/recorded_values.h"
#include "experiments/cases/case_file.h"

namespace headlab {
namespace {

// Does not exist at shared heads.
bool of_routed(const std::string& name) {
  return name == "probability" || name == "selected" || name == "gate_selected";
}

// in.gates [L,B,T,H], in.probability and in.selected [L,B,T,E] of the last E heads, in.alpha
// [L,B,T,2] with the shared heads first, in.length [B]. What is of routed heads alone is [L,E].
NamedTensors route_statistics_of_file(const CaseFile& file) {
  const auto gates = file.at("in.gates"), probability = file.at("in.probability");
  const auto selected = file.at("in.selected"), alpha = file.find("in.alpha");
  const int64_t L = gates.size(0), H = gates.size(3), E = probability.size(3);
  if (E > H || E != selected.size(3))
    file.refuse("in.probability and in.selected must be of the last E <= " + std::to_string(H) +
                " heads of in.gates");
  std::map<std::string, std::vector<Tensor>> layers;
  for (int64_t l = 0; l < L; ++l) {
    std::map<std::string, Tensor> routes{{"gates", gates[l]},
                                         {"probability", probability[l]},
                                         {"selected", selected[l].to(at::kBool)},
                                         {"routed", at::arange(H - E, H)},
                                         {"query_length", file.at("in.length")}};
    if (alpha.defined()) routes["alpha"] = alpha[l].select(2, 0);
    for (const auto& [name, values] : recorded_values("moh", H, routes))
      layers[name].push_back(at::tensor(values, at::kDouble));
  }
  NamedTensors computed;
  for (const auto& statistic : head_kind("moh").recorded.table) {
    auto values = at::stack(layers.at(statistic.name));  // [L,H] or [L,1]
    if (statistic.per == Per::kLayer) values = values.squeeze(1);
    if (of_routed(statistic.name)) values = values.narrow(1, H - E, E);
    computed[std::string("out.") + statistic.name] = values;
  }
  return computed;
}

const RegisterCase routes_cases("routes-1", route_statistics_of_file);

}  // namespace
}  // namespace headlab
