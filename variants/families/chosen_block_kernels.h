// attend_to_chosen() by kernels of the CPU (variants/families/chosen_block_rows.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/kernels/attention_rows.h"

namespace headlab {

using at::Tensor;

// Softmax of scale q k^T over the keys up to places [B or 1,T] of the blocks [B,H,T,m] (of `block`
// keys; none twice, -1: none), at most `back` places before the query. q [B,H,T,d], k [B,Hkv,S,d],
// v [B,Hkv,S,e] of any floating types on the CPU -> [B,H,T,e] in the type of v. kv_map as in
// HeadCall. No map is held; second derivatives are refused.
Tensor attend_to_lists(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                       const Tensor& places, int64_t block, const Tensor& kv_map, double scale,
                       int64_t back = kUnlimited);

}  // namespace headlab
