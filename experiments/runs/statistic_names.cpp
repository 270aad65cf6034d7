#include "experiments/runs/statistic_names.h"

#include "core/attention/call/statistic.h"

namespace headlab {

std::vector<std::string> statistic_names() {
  std::vector<std::string> names;
  for (const auto& s : statistic_table()) names.push_back(s.name);
  return names;
}

std::vector<std::string> default_statistics() {
  std::vector<std::string> names;
  for (const auto& s : statistic_table())
    if (s.always) names.push_back(s.name);
  return names;
}

}  // namespace headlab
