// A statistic of heads as kinds, observers and logs name it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headlab {

// What a statistic has one value for: [H], [H,H] (head, head2), one a layer, [H,E] (head, expert).
enum class Per { kHead, kPair, kLayer, kExpert };

// How values of rows, examples and batches become one.
enum class Reduce { kMean, kMaximum };

// What a statistic cannot exist without, beside weights.
enum class Needs { kNothing, kTokens, kClasses, kScores, kValues, kOutputs };

// The pooled values of one layer by statistic, as many as value_count(); NaN where nothing counted.
using LayerValues = std::map<std::string, std::vector<double>>;

// Name, units and formula are those of the HDF5 variable.
struct Statistic {
  const char* name = "";
  const char* units = "1";
  const char* long_name = "";
  const char* formula = "";
  bool always = true;         // in the default set
  bool needs_places = false;  // compares places of queries and keys: not in cross-attention
  Needs needs = Needs::kNothing;
  Per per = Per::kHead;
  Reduce reduce = Reduce::kMean;
  int64_t experts = 0;  // E of Per::kExpert; 0: as many as the first report has
  // What is no mean over tokens but follows from the pooled means: completes the values of a layer
  // of `heads` heads. One function may stand in several entries; it runs once.
  void (*finish)(int64_t heads, LayerValues& values) = nullptr;
  // A statistic of the rows of another of the layer's maps: which map, and its name in the table.
  int64_t map = 0;
  const char* of_rows = "";
};

// What is streamed of every kind of heads. Those of rows first: the means in the order of
// RowStatistic, then the maxima in that of RowMaximum.
const std::vector<Statistic>& statistic_table();

// A kind's own.
inline Statistic head_statistic(const char* name, const char* units, const char* long_name,
                                const char* formula) {
  return {.name = name, .units = units, .long_name = long_name, .formula = formula};
}
inline Statistic layer_statistic(const char* name, const char* units, const char* long_name,
                                 const char* formula) {
  return {
      .name = name, .units = units, .long_name = long_name, .formula = formula, .per = Per::kLayer};
}

inline Statistic expert_statistic(const char* name, const char* units, const char* long_name,
                                  const char* formula, int64_t experts) {
  return {.name = name,
          .units = units,
          .long_name = long_name,
          .formula = formula,
          .per = Per::kExpert,
          .experts = experts};
}

// Those of the table that are of rows, of another of a layer's maps: `entropy_2` is of map 1, or
// `entropy_window` with the word `window`. What an observer is told of map 1 is logged under these
// names where the kind declares them.
std::vector<Statistic> row_statistics_of_map(int64_t map, const std::string& word = "");
std::string name_of_map(const std::string& statistic, int64_t map);

// How many values a layer of `heads` heads has, each of `experts`.
inline int64_t value_count(Per per, int64_t heads, int64_t experts = 0) {
  switch (per) {
    case Per::kHead:
      return heads;
    case Per::kPair:
      return heads * heads;
    case Per::kLayer:
      return 1;
    case Per::kExpert:
      return heads * experts;
  }
  return 0;
}

}  // namespace headlab
