// CP decomposition (PARAFAC) of the query-key products of a layer's heads, by alternating least
// squares: P[i,h,j] = (q_h^T k_h)[i,j] is near sum_r a[i,r] m[h,r] b[j,r].
//
// Carroll & Chang 1970, Harshman 1970; of trained heads: Cordonnier et al., arXiv 2006.16362. P is
// never formed: a sweep costs about 4 D H d R multiply-adds. Everything is float64 on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace headlab {

using at::Tensor;

struct Cp {
  Tensor a, m, b;  // [D,R], [H,R], [D,R]
};

// norm(P - P') / norm(P), Frobenius, to rounding: one head's [D,D] at a time. 0 where P is 0.
// q, k [H,d,D].
double cp_error(const Tensor& q, const Tensor& k, const Cp& cp);

// The R largest singular triplets over all heads' products, each mixed into its own head alone.
Cp block_start(const Tensor& q, const Tensor& k, int64_t rank);
// Uniform in [0, 1), a function of the seed.
Cp random_start(const Tensor& q, int64_t rank, uint64_t seed);

struct AlsOptions {
  int64_t sweeps = 100;     // at most, over a, m, b in this order
  double tolerance = 1e-6;  // ends when a sweep changes the relative error by less
};
// Descends from a start. The error that ends it cancels below about 1e-7.
Cp als(const Tensor& q, const Tensor& k, Cp start, const AlsOptions& options = {});

// The best of the block start and `random_starts` random ones, each descended from. Columns of m
// have length 1, as in an exact copy, those of a and b the same length.
Cp parafac(const Tensor& q, const Tensor& k, int64_t rank, int64_t random_starts);

}  // namespace headlab
