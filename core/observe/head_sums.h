// What rows, examples and kinds add up to for one layer's heads: arrays that parts of the data and
// ranks merge by adding (maxima: by the maximum).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/attention/call/statistic.h"
#include "core/kernels/row_statistics.h"

namespace headlab {

struct RowSlots;

// Rows of each head by r = argmax_j a - i, dense in r = -reach .. reach.
struct OffsetRows {
  int64_t heads = 0, reach = 0;
  std::vector<int64_t> rows;  // [heads, 2 reach + 1]

  explicit OffsetRows(int64_t heads = 0) : heads(heads), rows(heads) {}
  void widen(int64_t to);  // a reach of at least `to`
  void add(int64_t head, int64_t offset, int64_t count = 1);
  void add(const OffsetRows& more);
  int64_t at(int64_t head, int64_t offset) const;
  bool operator==(const OffsetRows&) const = default;
};

// In original heads. A value is sum / count; NaN where nothing counted.
struct HeadSums {
  // A statistic of the kind's own.
  struct Own {
    std::string name;
    Per per = Per::kHead;
    Reduce reduce = Reduce::kMean;
    std::vector<double> sums, counts;  // as value_count(); sums of a maximum: the maximum
    int64_t map = 0;                   // Statistic::map, of_rows
    std::string of_rows = {};

    void add(int64_t to, double sum, double count);
  };

  int64_t heads = 0;
  std::vector<double> sums, counts;             // [H,kRowStatistics]
  std::vector<double> maxima;                   // [H,kRowMaxima], -infinity where no row counted
  OffsetRows offsets;                           // of the rows that count
  std::vector<double> sink_examples, examples;  // [H] examples with mean first_token > 0.3; all
  std::vector<double> js, js_counts;            // [H,H]
  std::vector<Own> own;                         // in the order in which they were declared
  std::vector<bool> alive;                      // [H]
  std::vector<decltype(Statistic::finish)> finish;  // of the kind's own, each once

  explicit HeadSums(int64_t heads = 0, const std::vector<Statistic>& own = {});
  void add(int64_t head, RowStatistic which, double sum, double count);
  void raise(int64_t head, RowMaximum which, double value);
  Own* find_own(const std::string& name);  // null: none is declared
};

// Adds what other rows of the same heads gave: the one merge of batches, parts of the data and
// ranks. `to` keeps which heads are alive. c10::Error where the numbers of heads differ.
void add_sums(HeadSums& to, const HeadSums& from);

// Adds the rows of a call; slots' heads are head_ids of the layer's. Without `places` rows have no
// offsets.
void add_rows(HeadSums& to, const RowSlots& slots, const std::vector<int64_t>& head_ids,
              bool places, double sink_threshold);

// The value of everything by name, sizes as value_count(): the table's and the kind's own; NaN for
// heads that are not alive and for what was not observed.
std::map<std::string, std::vector<double>> head_values(const HeadSums& sums);

}  // namespace headlab
