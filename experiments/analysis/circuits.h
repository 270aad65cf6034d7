// What the weights of heads say without data: what a head matches (QK), what it moves (OV), and how
// heads of different layers are composed. In float64 on the CPU.
//
// Matrices act on rows: W_Q^h = q_h^T and so on of HeadMatrices, [D,D] each: QK = W_Q^h W_K^hT, OV
// = W_V^h W_O^h. H heads of a layer, D d_model, r and e widths of a head's keys and values.
#pragma once

#include "core/heads.h"

namespace headlab {

// A matrix [D,D] a head as the product that it is, so that none of them is ever formed.
struct FactoredHeads {
  FactoredHeads(const Tensor& left, const Tensor& right);

  Tensor left, right;    // [H,D,m], [H,m,D]
  Tensor columns, rows;  // [H,k,m]: norm_F(left M right) = norm_F(columns M rows^T), k = min(D,m)
};
FactoredHeads query_key(const HeadMatrices& heads);
FactoredHeads key_query(const HeadMatrices& heads);  // its transpose
FactoredHeads value_output(const HeadMatrices& heads);

// Largest first: [H, min(D,m)].
Tensor singular_values(const FactoredHeads& matrices);
// Of the sum over heads: [D].
Tensor layer_singular_values(const FactoredHeads& matrices);
// The fewest components that hold 95 % of the sum of squares; of nothing but zeros, 0. [...,n] ->
// [...], n NaN or more: descending.
Tensor rank_95(const Tensor& singular_values);

// Re(sum lambda) / sum |lambda| of the eigenvalues of OV: 1 copies, -1 suppresses; 0/0 is NaN. [H]
Tensor ov_copying(const HeadMatrices& heads);
// The same of E OV U^T, embedding and unembedding [V,D]: [H].
Tensor ov_copying_full(const HeadMatrices& heads, const Tensor& embedding,
                       const Tensor& unembedding);

// norm_F(A B) / (norm_F(A) norm_F(B)) of each head of an earlier layer (OV) and each of a later one
// (QK: Q-composition, its transpose: K, OV: V). Elhage et al. 2021. -> [H earlier, H later]
Tensor composition(const FactoredHeads& a, const FactoredHeads& b);

}  // namespace headlab
