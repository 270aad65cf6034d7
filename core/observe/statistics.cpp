#include "core/observe/statistics.h"

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
