// What routed heads did with the tokens of a pass, and the statistics of it.
//
// B batch, T tokens, H heads, E routed heads, K of which a token selects.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/attention/call/observer.h"
#include "core/attention/call/statistic.h"

namespace headlab {

using at::Tensor;

// The routes of one layer. Without routed heads `probability` and `selected` are undefined, without
// two groups of heads to weigh against each other `alpha` is.
struct Routes {
  Tensor gates;        // [B,T,H] with all factors, 0 where not selected
  Tensor probability;  // [B,T,E] of the router
  Tensor selected;     // [B,T,E] bool
  Tensor alpha;        // [B,T] weight of the shared heads against the routed ones
  Tensor routed;       // [E] int64: which of the H heads are routed
};

// The K largest of the last dimension, of equals the first: bool, of the shape of `rank`; without
// gradient.
Tensor choose_heads(const Tensor& rank, int64_t K);

// sum_i P_i f_i: mean probability times share of tokens that select, over all tokens, padding too.
// P is differentiable, f constant. E times as much is the loss of the released code.
Tensor load_balance(const Routes& routes);

// By head, NaN at shared heads but for density and the gates' mean and deviation; or by layer.
const std::vector<Statistic>& route_statistics();

// Classes [B,T] of the T queries of a call that is watched, the last tokens of their sequence;
// undefined where the observer does not know them.
Tensor query_classes(const HeadCall& call, int64_t T);

// Reports the routes of the tokens below query_length [B] (undefined: of all); by class [B,T] where
// that is known.
void report_routes(HeadObserver& observer, const Routes& routes, const Tensor& query_length,
                   const Tensor& classes = {});
// The same of recorded routes, by the names of Routes' members; and `query_length` where there are
// other lengths.
void report_recorded_routes(HeadObserver& observer, const std::map<std::string, Tensor>& recorded);

}  // namespace headlab
