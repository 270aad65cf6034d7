// What published codes make of learned gates, beside the gates themselves (core/gate_target.h): for
// the judges of their numbers.
//
// CoFi (princeton-nlp/CoFiPruning), Sheared LLaMA (princeton-nlp/LLM-Shearing). Subsets: arXiv
// 2108.04657 (rycolab/differentiable-subset-pruning).
#pragma once

#include "core/gate_target.h"

namespace headlab {

// The mask [L,H] that CoFi and Sheared LLaMA put into their checkpoints: in each layer the
// round(H - sum p_open) smallest are 0, the others sigmoid(0.8 log_alpha / temperature), not 1.
Tensor published_mask(const Tensor& log_alpha, const HardConcrete& gate);
// Gates that sum to k, by k soft draws without replacement: weight, u [n], u uniform in (0, 1).
// 1 <= k <= n. A gate may exceed 1 at middle temperatures.
Tensor subset_gates(const Tensor& weight, const Tensor& u, int64_t k, double temperature);
// 1 where weight is above its (k+1)-th largest, else 0; the gradient passes unchanged.
Tensor straight_through_subset(const Tensor& weight, int64_t k);

}  // namespace headlab
