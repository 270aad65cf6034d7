#include "core/attention/call/statistic.h"

#include <deque>
#include <mutex>

namespace headlab {

std::string name_of_map(const std::string& statistic, int64_t map) {
  return map == 0 ? statistic : statistic + "_" + std::to_string(map + 1);
}

std::vector<Statistic> row_statistics_of_map(int64_t map) {
  static const std::vector<Statistic> of_rows{
#define HEADLAB_ROW_MEAN(enumerator, ...) Statistic{__VA_ARGS__},
#define HEADLAB_ROW_MAXIMUM(enumerator, ...)
#include "core/kernels/row_statistics.inc"
#define HEADLAB_ROW_MEAN(enumerator, ...)
#define HEADLAB_ROW_MAXIMUM(enumerator, ...) Statistic{__VA_ARGS__, .reduce = Reduce::kMaximum},
#include "core/kernels/row_statistics.inc"
  };
  static std::deque<std::string> names;  // live as long as the program
  static std::mutex mutex;               // several threads may run layers
  const std::lock_guard lock(mutex);
  const auto kept = [](const std::string& name) {
    for (const auto& known : names)
      if (known == name) return known.c_str();
    return names.emplace_back(name).c_str();
  };
  std::vector<Statistic> all;
  for (auto s : of_rows) {
    if (!s.always || s.needs == Needs::kOutputs) continue;  // what heads say is of all their maps
    s.name = kept(name_of_map(s.name, map));
    all.push_back(s);
  }
  return all;
}

}  // namespace headlab
