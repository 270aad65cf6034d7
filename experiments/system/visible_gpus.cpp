#include "experiments/system/visible_gpus.h"

#include <algorithm>

namespace headlab {

std::vector<std::string> visible_gpus(int64_t count, std::string_view given) {
  std::vector<std::string> names;
  for (int64_t n = 0; n < count; ++n) {
    if (given.empty()) {
      names.push_back(std::to_string(n));
      continue;
    }
    const auto end = std::min(given.find(','), given.size());
    auto name = given.substr(0, end);
    name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
    names.emplace_back(name.substr(0, name.find_last_not_of(' ') + 1));
    given.remove_prefix(std::min(end + 1, given.size()));
  }
  return names;
}

}  // namespace headlab
