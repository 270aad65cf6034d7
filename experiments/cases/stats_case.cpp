// The format `stats-1`: head statistics of given attention maps.
#include "core/torch.h"
#include "experiments/analysis/head_roles.h"
#include "experiments/analysis/maps/map_file.h"
#include "experiments/cases/case_file.h"

namespace headlab {
namespace {

// Row-major values [L,H], [L,H,H] or [L*H,L*H].
Tensor shaped(const std::string& name, const std::vector<double>& values, int64_t L, int64_t H) {
  const auto flat = at::tensor(values, at::kDouble);
  for (const auto& s : map_statistic_table()) {
    if (s.name != name || s.dims == MapDims::kHead) continue;
    return s.dims == MapDims::kHeadsOfLayer ? flat.view({L, H, H}) : flat.view({L * H, L * H});
  }
  return flat.view({L, H});
}

NamedTensors map_statistics_of_file(const CaseFile& file) {
  auto metadata = file.metadata;
  metadata.try_emplace("causal", "false");  // a case says it where it is so
  const MapFile maps(file.name, file.tensors, metadata);
  const int64_t L = std::ssize(maps.layers), H = maps.heads;
  const auto values = maps.values({.names = maps.statistics(), .top_k = maps.top_k});
  NamedTensors computed;
  for (const auto& [name, of] : values) computed["out." + name] = shaped(name, of, L, H);
  for (const auto& [name, has] : head_roles(values))
    computed["out.role." + name] = at::tensor(has, at::kByte).view({L, H});
  if (!maps.context().cross) computed["out.rollout"] = rollout(maps.layers);
  return computed;
}

const RegisterCase stats_cases("stats-1", map_statistics_of_file);

}  // namespace
}  // namespace headlab
