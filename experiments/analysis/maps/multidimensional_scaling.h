// Classical multidimensional scaling (Torgerson 1952): points whose distances are like given
// dissimilarities.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace headlab {

struct ScaledPoints {
  at::Tensor points;                // [N,dims] float64
  std::vector<double> eigenvalues;  // [dims], falling; negative ones are no dimension: 0
  double share = 0;                 // of the positive eigenvalues' sum that these have
};

// dissimilarity [N,N] symmetric, on the CPU; an item whose diagonal is NaN has a point of NaN. The
// centre is at 0, and of each dimension the entry largest in size, the first of equals, is
// positive.
ScaledPoints scale_points(const at::Tensor& dissimilarity, int64_t dims);

}  // namespace headlab
