// Whoever watches a layer while it runs: layers speak to this class, core/observe/probe.h listens.
//
// B batch, T queries, S keys, D d_model, H the heads that the layer has, e width of a head's
// values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/attention/call/statistic.h"

namespace headlab {

using at::Tensor;
struct AttentionCall;
struct HeadCall;

// What a layer's weights are over: tokens; fewer places, each made of several tokens; or nothing,
// where there are no weights.
enum class HeadMap { kTokens, kCompressed, kNone };

// A layer as it is entered.
struct ObservedLayer {
  std::string site = "self";
  int64_t layer = 0;
  int64_t heads = 0;                   // as built
  std::vector<int64_t> head_ids = {};  // [H] original indices of those it has
  std::vector<bool> alive = {};        // [heads]
  Tensor output_weight = {};           // [D, H*e] of the output projection; undefined: it has none
  std::vector<Statistic> own = {};     // the kind's own statistics: no others may be reported
  HeadMap map = HeadMap::kTokens;      // what its weights are over
};

// A map that is no plain softmax of q k^T.
struct ObservedMap {
  Tensor p = {};       // [B,H,T,S] weights before heads are mixed: statistics are of their rows
  Tensor a = {};       // [B,H,T,S] the weights that meet the values
  Tensor scores = {};  // [B,H,T,S] scaled and biased, before the mask; undefined: there are none
  // p is the softmax of the scores over the keys that the call's mask allows: they have a
  // log-sum-exp, and statistics of p are made from them.
  bool softmax = true;
  // Else rows of p are divided by their sum, and rows that sum to less than 1e-12 are left out.
  // Rows without an allowed key sum to 0.
  bool rows_sum_to_one = true;
  Tensor row_sums = {};     // [B,H,T] of the weights before heads are mixed; undefined: those of p
  bool mixed = true;        // where a is not p: heads were mixed
  Tensor v = {}, out = {};  // [B,Hkv,S,e], [B,H,T,e]
  Tensor counted = {};      // bool [B,H,T] statistics are of these rows only; undefined: of all
  int64_t map = 0;          // which of the layer's maps
};

class HeadObserver {
 public:
  virtual ~HeadObserver() = default;

  // What is asked for, so that nothing is made for an observer that does not look: statistics of
  // the pass, and weights (for statistics of them, or to keep).
  virtual bool wants_statistics() const = 0;
  virtual bool wants_maps() const = 0;
  // Of the tokens of a sequence that attends to itself, [B,S] uint8: 0 word, 1 cls, 2 sep, 3
  // punctuation; undefined where they are not known.
  virtual Tensor token_classes() const { return {}; }

  virtual void enter(ObservedLayer layer) = 0;
  // A plain masked softmax that gave out [B,H,T,e]. `counted` bool [B,H,T]: statistics are of these
  // rows only (routed heads); undefined: of all.
  virtual void softmax(const AttentionCall& call, const Tensor& out,
                       const Tensor& counted = {}) = 0;
  // Any other map.
  virtual void weights(const ObservedMap& map, const HeadCall& call) = 0;
  // The map that the same heads of the layer before gave to this function in this pass, 0 for heads
  // that are not alive there; undefined where there is none of this size. Keeps `map` [B,H,T,S] for
  // the layer behind.
  virtual Tensor map_before(const Tensor& map) = 0;
  // What heads put into the output projection, [B,H,T,e]: before and after gates and offset.
  virtual void outputs(const Tensor& o, const Tensor& edited, const HeadCall& call) = 0;
  // A statistic of the kind's own, one of ObservedLayer::own: value = sum / count. Both [H], or
  // scalars where it is by layer; NaN where the count is 0. c10::Error for other names and sizes.
  virtual void report(const std::string& name, const Tensor& sums, const Tensor& counts) = 0;
};

// Reports a statistic by head that is a mean over rows: of_row and bool `counted` [B,H,T].
void report_rows(HeadObserver& observer, const char* name, const Tensor& of_row,
                 const Tensor& counted);

}  // namespace headlab
