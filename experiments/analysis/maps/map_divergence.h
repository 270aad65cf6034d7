// Jensen-Shannon divergence between all heads of all layers, from their maps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace headlab {

using at::Tensor;

constexpr int64_t kMostDivergingHeads = 1024;

// Adds, for each pair of the N heads, 1/2 KL(p||m) + 1/2 KL(q||m), m = (p+q)/2, of the rows that
// both have, and their number, to sums and counts [N,N]. p [N,R,S] float64, rows that sum to 1;
// counted bool [N,R]; both on the CPU. At most kMostDivergingHeads heads.
void add_divergence(const Tensor& p, const Tensor& counted, double* sums, double* counts);

// Rows as Clark et al. 2019 smooth them: 0.999 p + 0.001 / S, p [..,S].
Tensor smooth_rows(const Tensor& p);

}  // namespace headlab
