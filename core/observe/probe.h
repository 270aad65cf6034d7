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
#include <utility>
#include <vector>

#include "core/attention/call/masks.h"
#include "core/attention/call/observer.h"
#include "core/attention/call/statistic.h"
#include "core/observe/head_sums.h"

namespace headlab {

using at::Tensor;
struct CountedRows;

// A map of a model: a layer of a site, and which of its maps where a head has several. Of a model
// with one attention a layer, and of one layer alone, the layer's number says it.
struct MapKey {
  std::string site = "self";
  int64_t layer = 0, map = 0;

  MapKey(int64_t layer_ = 0) : layer(layer_) {}  // NOLINT(google-explicit-constructor)
  MapKey(std::string site_, int64_t layer_, int64_t map_)
      : site(std::move(site_)), layer(layer_), map(map_) {}
  auto operator<=>(const MapKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

using ProbeSums = std::map<MapKey, HeadSums>;

class HeadProbe : public HeadObserver {
 public:
  bool statistics = false;
  bool maps = false;
  bool patterns = false;      // the weights that statistics are of, with what they may attend to
  bool head_outputs = false;  // what each head puts into the output projection
  bool divergence = true;     // js, with statistics
  bool matches = false;       // induction and duplicate_token, with statistics
  int64_t js_stride = 16;     // every 16th query row, from a start drawn by (seed, step, layer)
  double sink_threshold = 0.3;

  // Facts of the batch that some statistics need; undefined: those are absent.
  Tensor tokens;          // [B,S] int64
  Tensor classes;         // [B,S] uint8: 0 word, 1 cls, 2 sep, 3 punctuation
  Tensor class_of_token;  // [V] uint8: gives the classes where only tokens are known

  void reset();  // forgets sums and maps

  bool wants_statistics() const override { return statistics; }
  bool wants_maps() const override { return statistics || maps || patterns; }
  Tensor token_classes() const override;
  void enter(ObservedLayer layer) override;
  void softmax(const AttentionCall& call, const Tensor& out, const Tensor& counted = {}) override;
  // Where a is not p, composed_row_sum and composed_negative_mass are of a. max_logit and lse are
  // of the scores alone.
  void weights(const ObservedMap& map, const HeadCall& call) override;
  Tensor map_before(const Tensor& map) override;
  // Heads without a map have the statistics of these alone.
  void outputs(const Tensor& o, const Tensor& edited, const HeadCall& call) override;
  void report(const std::string& name, const Tensor& sums, const Tensor& counts) override;

  const ProbeSums& sums() const { return sums_; }
  ProbeSums take_sums() { return std::exchange(sums_, {}); }  // leaves none
  void add_sums(const ProbeSums& more);  // what other passes of the same layers gave
  // Of a layer's first map, with those of the others under their names there (name_of_map()).
  std::map<std::string, std::vector<double>> values(const MapKey& key) const;
  // Of each layer that reported one since the last reset(), the newest: [B,H,T,S] in the heads that
  // the layer has (AttentionHeads::head_ids).
  const std::map<MapKey, Tensor>& layer_maps() const { return maps_; }
  // Likewise the weights p before heads are mixed, and the mask of the rows that count.
  struct Pattern {
    Tensor p;  // [B,H,T,S]
    AttentionMask mask;
  };
  const std::map<MapKey, Pattern>& layer_patterns() const { return patterns_; }
  // Likewise what outputs() was told; `weight` [D,H*e] of the output projection, `counted` bool
  // [B,H,T] the rows that softmax() was told to count (undefined: all).
  struct Outputs {
    Tensor o, edited, weight, counted;
  };
  const std::map<MapKey, Outputs>& layer_outputs() const { return outputs_; }

 private:
  MapKey key(int64_t map = 0) const { return {layer_.site, layer_.layer, map}; }
  HeadSums& sums_of(int64_t map);
  // Completed with what the probe knows; of which of the layer's maps.
  void stream(const AttentionCall& call, CountedRows rows, int64_t map);
  void add_output_norms(const Tensor& o, const AttentionMask& mask);
  void raise_scores(const ObservedMap& map, const AttentionMask& mask);

  ProbeSums sums_;
  std::map<MapKey, Tensor> maps_;
  std::map<MapKey, Pattern> patterns_;
  std::map<MapKey, Outputs> outputs_;
  ObservedLayer layer_;  // that the probe is in
  Tensor counted_;       // the rows of it that softmax() was told to count
  Tensor passed_map_;    // [B,H,T,S], original heads
  MapKey passed_from_;
};

}  // namespace headlab
