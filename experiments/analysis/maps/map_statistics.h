// Head statistics that need the map itself and cannot stream. In float64, pooled over batches in a
// fixed order: neither the number of threads nor padding changes a bit.
//
// B batch, T queries, S keys, L layers, H heads of a layer as built.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "experiments/analysis/maps/patterns.h"

namespace headlab {

enum class MapDims { kHead, kHeadsOfLayer, kAllHeads };  // [L,H], [L,H,H], [L*H,L*H]

struct RowValues;
struct ExampleMap;
struct MapStatistic : Statistic {
  MapDims dims = MapDims::kHead;
  // Of single heads: from the rows of one example (map_formulas.h).
  RowValues (*values)(const ExampleMap& example) = nullptr;
  // Whether the context holds what it needs, as the classes of the tokens; null: it needs nothing.
  bool (*needs_context)(const MapContext& context) = nullptr;

  bool exists(const MapContext& context) const { return !needs_context || needs_context(context); }
};
const std::vector<MapStatistic>& map_statistic_table();

// The weights of one layer in a batch. Of the context, what its statistics need.
struct LayerMap {
  Tensor a = {};                    // [B,n,T,S]; undefined: it has none
  std::vector<int64_t> heads = {};  // [n] their original indices
  MapContext context = {};
};

// Example b alone, [1,n,T,S] on the CPU, without padding.
LayerMap example_of(const LayerMap& map, int64_t b);

struct MapStatisticsOptions {
  std::vector<std::string> names;  // of the table: what is computed
  int64_t top_k = 5;
  int64_t js_stride = 1;      // js of every n-th row of an example, from a start drawn by `seed`
  uint64_t seed = 0;          // and the example's number
  int64_t rarest_rank = 500;  // rare_token: sequences whose rarest token is at least as rare
};

class MapStatistics {
 public:
  MapStatistics(int64_t layers, int64_t heads, MapStatisticsOptions options);

  // All layers of a batch, in order; each is a layer's map or has none. Lengths are the same in
  // all. c10::Error where sizes do not fit.
  void add(const std::vector<LayerMap>& layers);

  // By name, row-major in the statistic's dims. NaN for heads without maps and where nothing
  // counted. Between heads of more than 1024 in all: absent.
  std::map<std::string, std::vector<double>> values() const;

 private:
  struct Sums {
    std::vector<double> sums, counts;
  };
  using AllSums = std::map<std::string, Sums>;

  AllSums zeros() const;
  void add_example(AllSums& to, const std::vector<LayerMap>& layers, int64_t number) const;

  int64_t layers_, heads_;
  MapStatisticsOptions options_;
  AllSums total_;
  int64_t examples_ = 0;
};

// Attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928): A_l = (mean over heads of a + I)/2,
// R_l = A_l R_{l-1}, R_0 = A_0, on the length x length block of each example; 0 outside of it.
// -> [L,B,T,T] float64; NaN from the first layer without a map on. Self-attention only.
Tensor rollout(const std::vector<LayerMap>& layers);

}  // namespace headlab
