// Softmax attention of chosen query rows only: what routed heads skip is not computed.
//
// B batch, T queries, S keys, H heads, d head width.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/attention/attend.h"

namespace headlab {

// attend(), where of the heads from `first` on row t of head h in example b is computed only if
// `chosen` bool [B,H,T] says so; the other rows are 0 and pass no gradient.
// q [B,H,T,d], k, v [B,Hkv,S,d] -> [B,H,T,d]. Feeds no probe. With a mask of causality, window and
// lengths alone no [B,H,T,S] tensor is made on a CPU; other masks and biases are gathered for the
// chosen rows.
Tensor attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& chosen,
                   int64_t first, const HeadContext& ctx, double scale);

// Whether attend_rows() takes less time than attend() where heads choose `share` of their rows.
bool rows_pay(const Tensor& q, const HeadContext& ctx, double share);

}  // namespace headlab
