// The formulas behind map_statistics.h: what each statistic is of the rows of one example.
#pragma once

#include "experiments/analysis/maps/map_statistics.h"

namespace headlab {

// Values [1,n,T] and the rows [1,n,T] for which they are defined.
struct RowValues {
  Tensor value, counted;
};

// One layer of one example.
struct ExampleMap {
  const LayerMap& map;
  const MapStatisticsOptions& options;
  PatternRows rows;

  ExampleMap(const LayerMap& m, const MapStatisticsOptions& o)
      : map(m), options(o), rows(pattern_rows(m.a, m.context)) {}

  const MapContext& context() const { return map.context; }
  Tensor classes_of_rows() const {  // [1,1,T]
    const int64_t T = rows.a.size(2), S = rows.a.size(3);
    return context().classes.narrow(1, S - T, T).unsqueeze(1);
  }
  Tensor key_is(uint8_t of_class) const {  // [1,1,1,S]
    return (context().classes == of_class).unsqueeze(1).unsqueeze(1);
  }
};

}  // namespace headlab
