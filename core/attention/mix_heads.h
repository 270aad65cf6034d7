// Heads that talk to each other through one matrix: what mixes scores or weights across heads.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/observe/probe.h"

namespace headlab {

using at::Tensor;

// b_g = sum_h a_h weight[h,g] + bias_g. a [B,H,T,S], weight [H,H] index [from, to], bias [H] or
// undefined -> [B,H,T,S], in a's type. Heads that `alive` [H] (undefined: all) says are gone put
// nothing in.
Tensor mix_heads(const Tensor& a, const Tensor& weight, const Tensor& bias, const Tensor& alive);

// A mixing [H,H] keeps the given rows and the same columns; undefined ones stay so.
void keep_mixing(Tensor& to, const Tensor& from, const std::vector<int64_t>& rows);

// Reports the share of a mixing that leaves its head, sum_{h != g} |w[h,g]| / sum |w[h,g]| over the
// alive heads, under a name of the kind's own_statistics(), by layer.
void report_off_diagonal(HeadProbe& probe, const std::string& name, const Tensor& weight,
                         const Tensor& alive);

}  // namespace headlab
