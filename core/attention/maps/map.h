// A map turns the scores of a row into its weights. Core has the softmax; every other map stands
// beside the kind of its name and registers itself there (MapOptions, core/head_kinds.h).
//
// B batch, T queries, S keys, H heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/attention/call/statistic.h"
#include "core/kernels/row_map.h"

namespace headlab {

using at::Tensor;
struct AttentionCall;
struct HeadCall;
class HeadObserver;
class Map;
class Softmax;
using MapPtr = std::shared_ptr<const Map>;

// Weights that a map made, as its own statistics need them.
struct MapRows {
  Tensor weights;  // [B,H,T,S]
  Tensor sums;     // [B,H,T] of the weights; undefined where the map's rows sum to one
  Tensor pairs;    // bool [B,H,T,S]: the allowed keys of the rows that count
  Tensor rows;     // bool [B,H,T]: the rows that count
};

class Map : public std::enable_shared_from_this<Map> {
 public:
  virtual ~Map() = default;

  // The weights of scores z [B,H,T,S], float32 or wider, over the allowed keys (undefined: all):
  // [B,H,T,S], differentiable. Other keys get 0, and so do rows without any key, where no gradient
  // passes; a score that is NaN makes its row NaN. Equal scores of a row get equal weights. z holds
  // what offsets() adds, and weights_of() divides by row_divisors().
  virtual Tensor weights(const Tensor& z, const Tensor& allowed,
                         const AttentionCall& call) const = 0;
  // The weights of a row with an allowed key sum to 1.
  virtual bool rows_sum_to_one() const { return false; }

  // The softmax that gives the same weights, for the paths that hold none; null: there is none.
  virtual const Softmax* as_softmax() const { return nullptr; }
  // The plain softmax itself, which has no statistics of its own.
  bool is_softmax() const;

  // Added to the scores of each example, which broadcasts to [B,H,T,S]; undefined: nothing.
  virtual Tensor offsets(const AttentionCall& /*call*/, int64_t /*S*/,
                         const at::TensorOptions& /*options*/) const {
    return {};
  }
  // Divides the weights of each row, broadcasts to [B,H,T]; undefined: nothing.
  virtual Tensor row_divisors(const AttentionCall& /*call*/, int64_t /*T*/,
                              const at::TensorOptions& /*options*/) const {
    return {};
  }

  // This map of `count` of the heads: another one where it holds numbers by head.
  virtual MapPtr of_heads(int64_t /*first*/, int64_t /*count*/) const { return shared_from_this(); }
  // This map with the layer's parameter [H] that it learns (MapOptions::learned), as float32 or
  // wider; and what brings that parameter back into its range after an update.
  virtual MapPtr with_learned(const Tensor& /*parameter*/) const { return shared_from_this(); }
  virtual void after_step(Tensor& /*parameter*/) const {}

  // Why a layer with this map cannot decode with a cache, in words; null: it can.
  virtual const char* cannot_decode() const { return nullptr; }

  // Statistics beside those that every map has, and their report of the rows that count.
  virtual std::vector<Statistic> statistics() const { return {}; }
  virtual void report(const MapRows& /*rows*/, HeadObserver& /*observer*/) const {}

  // For the path by blocks of rows, without offsets() and row_divisors(); nullopt: that path does
  // not serve this map.
  virtual std::optional<RowMap> row_map(const AttentionCall& /*call*/, int64_t /*S*/) const {
    return std::nullopt;
  }
  // There, a number of each head [H], or [1] for all, in place of RowMap::number; it may learn.
  virtual Tensor row_numbers() const { return {}; }
};

// A_ij = exp z_ij / sum_j exp z_ij; with a sink, a score of each head that has no value (gpt-oss):
// A_ij = exp z_ij / (exp sink_h + sum_j exp z_ij).
class Softmax : public Map {
 public:
  Softmax() = default;
  explicit Softmax(const Tensor& sink) : sink_(sink) {}  // [H], or [1] for all

  const Tensor& sink() const { return sink_; }  // undefined: none
  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall& call) const override;
  bool rows_sum_to_one() const override { return !sink_.defined(); }
  const Softmax* as_softmax() const override { return this; }
  MapPtr of_heads(int64_t first, int64_t count) const override;
  MapPtr with_learned(const Tensor& sink) const override;
  std::vector<Statistic> statistics() const override;
  void report(const MapRows& rows, HeadObserver& observer) const override;
  std::optional<RowMap> row_map(const AttentionCall& call, int64_t S) const override;
  Tensor row_numbers() const override { return sink_; }

 private:
  Tensor sink_;
};
const MapPtr& plain_softmax();

// The weights by call.map of scores [B,H,T,S], biased, over the allowed keys (undefined: all):
// [B,H,T,S], widened(). Heads of call.uniform weigh all that they may see by 1 / n.
Tensor weights_of(const Tensor& scores, const Tensor& allowed, const AttentionCall& call);
Tensor weights_of(const Tensor& scores, const Tensor& allowed, const HeadCall& call);

// What a sink [H], or [1] for all, leaves to the softmax of a row with this log-sum-exp [B,H,T]:
// A = g softmax(z), g = sigmoid(LSE - sink). 0 in rows without an allowed key.
Tensor share_beside_sink(const Tensor& lse, const Tensor& sink);

// Where the T queries of a call stand among its keys, int64: broadcasts to [B,H,T].
Tensor query_places(const AttentionCall& call, int64_t T, const at::Device& device);

// Of numbers by head [H], or [1] for all, those of `count` heads; undefined: undefined.
Tensor some_of_heads(const Tensor& by_head, int64_t first, int64_t count);

// What observe_weights() reports of a map beside what every map has.
std::vector<Statistic> map_statistics(const Map& map);

// Weights that call.map made.
struct MappedWeights {
  Tensor scores;        // [B,H,T,S] biased
  Tensor p, a;          // [B,H,T,S] by the map; and what heads mix of them, else the same
  Tensor v, out;        // [B,Hkv,S,e], [B,H,T,e]
  Tensor counted = {};  // bool [B,H,T] as in ObservedMap
};
void observe_weights(const MappedWeights& weights, const HeadCall& call);

}  // namespace headlab
