// Attention of heads of which some serve every token and the others only tokens that are routed to
// them, for whom alone queries, attention and outputs are computed.
//
// B batch, T queries, S keys, H heads, hs shared ones, D d_model, d width of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/attention/attend.h"
#include "core/attention/layers.h"

namespace headlab {

struct RoutedHeads {
  Linear q, o;            // of all heads: weights [H d,D] and [D,H d]
  int64_t heads, shared;  // the first `shared` serve every token
  double scale;           // on q k^T
};

// y [B,T,D] where head h serves the tokens of x [B,T,D] whose gate [B,H,T] is not 0, feeding
// call.observer; equals what attend() gives for all rows times the gates. Gates multiply those of
// the context. `all_queries` [B,H,T,d] before rotation, where the router made them; else undefined.
// k, v [B,Hkv,S,d].
Tensor attend_routed(const RoutedHeads& heads, const Tensor& x, const Tensor& all_queries,
                     const Tensor& k, const Tensor& v, const Tensor& gates, const HeadCall& call);

}  // namespace headlab
