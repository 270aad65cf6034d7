// The convolution of maps over queries and keys.
#pragma once

#include "core/attention/call/attention_call.h"

namespace headlab {

// With a kernel w [H,cq,ck], whose last row meets the current query,
//   out[b,h,i,j] = sum_{a<cq, c<ck} w[h,a,c] s[b,h, N-T+i-(cq-1)+a, j-before+c]
// for the last T of the N rows of a map s [B,H,N,S], which counts as 0 around it and where
// `allowed` (bool, broadcasts to s; undefined: everywhere true) is false -> [B,H,T,S]. On a CPU by
// kernels without second derivatives, unless `backend` asks for eager.
Tensor convolve_map(const Tensor& s, const Tensor& allowed, const Tensor& kernel, int64_t T,
                    int64_t before, Backend backend);

}  // namespace headlab
