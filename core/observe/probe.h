// What one forward pass may record of its heads: streamed statistics, and maps where asked.
//
// Layers report to the probe while they run; without a probe nothing is observed and nothing paid.
// Statistics are those of statistic_table(), over the rows that count, pooled over
// every batch reported since the last reset().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/attention/attend.h"
#include "core/kernels/row_stats.h"

namespace headlab {

using at::Tensor;
struct HeadContext;

// One statistic: its names and formula are the HDF5 variable's.
struct Statistic {
  const char *name, *units, *long_name, *formula;
  bool always;            // in `log.stats: all`-less default
  bool places;            // compares places of queries and keys: not in cross-attention
  bool by_pair;           // (head, head2) instead of (head)
  bool by_layer = false;  // one value a layer
};
// A kind's own.
inline Statistic head_statistic(const char* name, const char* units, const char* long_name,
                                const char* formula) {
  return {name, units, long_name, formula, true, false, false, false};
}
inline Statistic layer_statistic(const char* name, const char* units, const char* long_name,
                                 const char* formula) {
  return {name, units, long_name, formula, true, false, false, true};
}

const std::vector<Statistic>& statistic_table();
// Of kinds whose map is composed of several heads' weights.
const std::vector<Statistic>& composed_statistics();
std::vector<std::string> statistic_names();     // every one of the table, which can be streamed
std::vector<std::string> default_statistics();  // the ones that are always on

// Sums of one layer's heads, in original indices. A value is sum / count; NaN where nothing
// counted.
struct HeadSums {
  int64_t heads = 0;
  std::vector<double> sums, counts;                 // [H, kRowStatistics]
  std::vector<std::map<int32_t, int64_t>> offsets;  // [H] argmax_j a - i -> rows
  std::vector<double> sink_examples, examples;      // [H] examples with mean first_token > 0.3; all
  std::vector<double> js, js_counts;                // [H,H]
  std::vector<bool> alive;                          // [H]
  struct Own {
    bool by_layer = false;
    std::vector<double> sums, counts;  // [H], or [1] by layer
  };
  std::map<std::string, Own> own;  // what HeadProbe::report() was told

  explicit HeadSums(int64_t heads = 0);
};

// Adds what other examples of the same heads gave; `to` keeps which heads are alive.
void add_sums(HeadSums& to, const HeadSums& from);

// sum / count of everything: [H] by name, js [H*H]; NaN for heads that are not alive and for what
// was not observed.
std::map<std::string, std::vector<double>> head_values(const HeadSums& sums);

class HeadProbe {
 public:
  bool statistics = false;
  bool maps = false;
  bool patterns = false;   // the weights that statistics are of, with what they may attend to
  bool outputs = false;    // what each head puts into the output projection
  bool divergence = true;  // js, with statistics
  bool matches = false;    // induction and duplicate_token, with statistics
  int64_t js_stride = 16;  // every 16th query row, from a start drawn by (seed, step, layer)
  double sink_threshold = 0.3;

  // Facts of the batch that some statistics need; undefined: those are absent.
  Tensor tokens;          // [B,S] int64
  Tensor classes;         // [B,S] uint8: 0 word, 1 cls, 2 sep, 3 punctuation
  Tensor class_of_token;  // [V] uint8: gives the classes where only tokens are known

  void reset();  // forgets sums and maps

  // Called by layers. enter() by AttentionHeads::forward, the others by attend() and by kinds.
  void enter(int64_t layer, int64_t heads, std::vector<int64_t> head_ids,
             const std::vector<bool>& alive);
  void output_weight(const Tensor& weight);  // [D, H*e], before the layer reports its softmax
  // A plain masked softmax: streams q [B,H,T,d], k, v [B,Hkv,S,.], out [B,H,T,e]. `counted` bool
  // [B,H,T]: statistics are of these rows only (routed heads); undefined: of all.
  void softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const HeadContext& ctx, double scale, const Tensor& counted = {});
  // Any other map: statistics are of p [B,H,T,S], the weights before heads are mixed (their rows
  // sum to 1 or, without an allowed key, to 0); the map is a [B,H,T,S], the weights that meet the
  // values. Where a is not p, composed_row_sum and composed_negative_mass are of a.
  void weights(const Tensor& p, const Tensor& a, const Tensor& v, const Tensor& out,
               const HeadContext& ctx);
  // The map that the same heads of the layer before gave to this function in this pass, 0 for heads
  // that are not alive there; undefined where there is none of this size. Keeps `map` [B,H,T,S] for
  // the layer behind.
  Tensor map_before(const Tensor& map);
  // What heads put into the output projection, [B,H,T,e]: before and after gates and offset.
  void outputs_of(const Tensor& o, const Tensor& said);
  // A statistic of the kind's own, one of its own_statistics(): value = sum / count. Both [H], in
  // this layer's heads, or scalars where it is by layer; NaN where the count is 0.
  void report(const std::string& name, const Tensor& sums, const Tensor& counts);

  const std::map<int64_t, HeadSums>& sums() const { return sums_; }
  std::map<std::string, std::vector<double>> values(int64_t layer) const {
    return head_values(sums_.at(layer));
  }
  // Of each layer that reported one since the last reset(), the newest: [B,H,T,S] in the heads that
  // the layer has (AttentionHeads::head_ids).
  const std::map<int64_t, Tensor>& layer_maps() const { return maps_; }
  // Likewise the weights p before heads are mixed, and the mask of the rows that count.
  struct Pattern {
    Tensor p;  // [B,H,T,S]
    AttentionMask mask;
  };
  const std::map<int64_t, Pattern>& layer_patterns() const { return patterns_; }
  // Likewise what outputs_of() was told; `weight` [D,H*e] of the output projection, `counted` bool
  // [B,H,T] the rows that softmax() was told to count (undefined: all).
  struct Outputs {
    Tensor o, said, weight, counted;
  };
  const std::map<int64_t, Outputs>& layer_outputs() const { return outputs_; }

 private:
  void stream(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
              const HeadContext& ctx, double scale);
  void keep_map(const Tensor& map);

  std::map<int64_t, HeadSums> sums_;
  std::map<int64_t, Tensor> maps_;
  std::map<int64_t, Pattern> patterns_;
  std::map<int64_t, Outputs> outputs_;
  int64_t layer_ = 0;
  std::vector<int64_t> head_ids_;
  Tensor output_weight_, counted_;  // of the layer that the probe is in
  Tensor passed_map_;               // [B,H,T,S], original heads
  int64_t passed_layer_ = 0;
};

}  // namespace headlab
