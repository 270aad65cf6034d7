// The tokens of a sequence that a mask of keys lets through, closed up: blocks and windows that
// count tokens count these alone, as in a packed sequence.
//
// B batch, T queries, S keys.
#pragma once

#include "core/attention/call/context.h"

namespace headlab {

struct PackedKeys {
  Tensor places;  // [B or 1,S] int64: of each token among the visible ones; -1: it is hidden
  Tensor order;   // [B,S] int64: the visible tokens, then the hidden ones; undefined: as they stand

  // Of a causal call that masks keys, from all queries and heads alike, and by lengths.
  PackedKeys(const HeadCall& call, int64_t B, int64_t S);

  // Of the last T tokens, which ask: [B or 1,T]; and whether each is hidden: bool [B or 1,1,T,1],
  // undefined where none is.
  Tensor query_places(int64_t T) const { return places.slice(1, places.size(1) - T); }
  Tensor hidden_queries(int64_t T) const;
  // t [B,.,S,.] with the visible tokens in front.
  Tensor closed_up(const Tensor& t) const;
  // The keys at the distances -back .. 0 from a visible query, in the tokens' own places: bool
  // [B or 1,1,T,S].
  Tensor pairs(int64_t T, int64_t back) const;

 private:
  bool any_hidden_ = false;
};

}  // namespace headlab
