// Softmax attention of chosen query rows only: what routed heads skip is not computed.
//
// B batch, S keys, H heads that choose, d width of a head, N chosen rows (core/attention/
// chosen_rows.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "core/attention/attend.h"
#include "core/attention/paths/chosen_rows.h"

namespace headlab {

// attend() of the chosen rows q [N,d] alone: k, v [B,H,S,d] -> [N,d]. Feeds no probe. With a mask
// of causality, window and lengths alone no [B,H,T,S] tensor is made on a CPU; other masks and
// biases are gathered for the chosen rows.
Tensor attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const ChosenRows& rows,
                   const HeadCall& call, double scale);

// The paths of such a call (core/attention/paths/paths.h): torch's fused attention in chunks of
// rows; and any path of lists of rows, of one length and with gathered masks and biases.
bool chosen_flash_serves(const AttentionCall& call);
AttendedRows chosen_flash(const AttentionCall& call);
AttendedRows chosen_lists(const AttentionCall& call);

// Whether computing the chosen rows alone, projections included, takes less time than computing all
// where heads choose `share` of those of x [B,T,D].
bool rows_pay(const Tensor& x, const HeadCall& call, double share);

}  // namespace headlab
