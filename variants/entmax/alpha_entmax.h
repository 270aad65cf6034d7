// alpha-entmax: a softmax that can give exact zeros, sparser the larger alpha.
//
// Peters et al., "Sparse Sequence-to-Sequence Models", arXiv 1905.05702, equations (10) and (13);
// gradient by alpha: Correia et al., "Adaptively Sparse Transformers", arXiv 1909.00015.
#pragma once

#include "core/attention/attend.h"

namespace headlab {

// p_j = [(alpha-1) z_j - tau]_+ ^ (1/(alpha-1)) over the allowed keys of each row, tau so that a
// row sums to 1; 0 at the other keys and in rows without any, where no gradient passes either. z
// [...,S] float32 or float64, allowed bool (undefined: all) broadcasts to it -> [...,S]. alpha >=
// 1, exactly the softmax at 1. tau is found by sorting at 1.5 and 2 and by Newton's method at other
// alphas.
Tensor entmax(const Tensor& z, const Tensor& allowed, double alpha);

// The rows of the path by blocks of rows, for 1 < alpha <= 2.
RowMap entmax_row_map(double alpha);

// alpha > 1 a tensor in z's type that broadcasts to z [...,1], such as [H,1,1]; it gets a gradient.
Tensor entmax(const Tensor& z, const Tensor& allowed, const Tensor& alpha);

}  // namespace headlab
