#include "core/attention/call/statistic.h"

#include <deque>
#include <mutex>

#include "core/kernels/row_statistics.h"

namespace headlab {

const std::vector<Statistic>& statistic_table() {
  static const std::vector<Statistic> table{
#define HEADLAB_ROW_MEAN(enumerator, ...) Statistic{__VA_ARGS__},
#define HEADLAB_ROW_MAXIMUM(enumerator, ...)
#include "core/kernels/row_statistics.inc"
#define HEADLAB_ROW_MEAN(enumerator, ...)
#define HEADLAB_ROW_MAXIMUM(enumerator, ...) Statistic{__VA_ARGS__, .reduce = Reduce::kMaximum},
#include "core/kernels/row_statistics.inc"
      {.name = "positional_share",
       .long_name = "share of rows with the commonest argmax offset",
       .formula = "share of the commonest r = argmax_j a - i",
       .needs_places = true},
      {.name = "positional_offset",
       .units = "token",
       .long_name = "the commonest argmax offset",
       .formula = "r = argmax_j a - i that is commonest; ties: smaller |r|, then the negative",
       .needs_places = true},
      {.name = "sink_rate",
       .long_name = "share of examples that sink into the first token",
       .formula = "share of examples whose own mean first_token is > 0.3",
       .always = false,
       .needs_places = true},
      {.name = "js",
       .units = "nat",
       .long_name = "Jensen-Shannon divergence between heads of a layer",
       .formula = "mean over sampled rows of KL(p||m)/2 + KL(q||m)/2, m = (p+q)/2",
       .per = Per::kPair},
  };
  return table;
}

std::string name_of_map(const std::string& statistic, int64_t map) {
  return map == 0 ? statistic : statistic + "_" + std::to_string(map + 1);
}

std::vector<Statistic> row_statistics_of_map(int64_t map, const std::string& word) {
  static std::deque<std::string> names;  // live as long as the program
  static std::mutex mutex;               // several threads may run layers
  const std::lock_guard lock(mutex);
  const auto kept = [](const std::string& name) {
    for (const auto& known : names)
      if (known == name) return known.c_str();
    return names.emplace_back(name).c_str();
  };
  std::vector<Statistic> all;
  for (int64_t n = 0; n < int{kRowStatistics} + int{kRowMaxima}; ++n) {
    auto s = statistic_table()[n];
    if (!s.always || s.needs == Needs::kOutputs) continue;  // what heads say is of all their maps
    s.map = map, s.of_rows = s.name;
    s.name = kept(word.empty() ? name_of_map(s.name, map) : s.name + ("_" + word));
    all.push_back(s);
  }
  return all;
}

}  // namespace headlab
