#include "experiments/analysis/circuits.h"

#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

Tensor wide(const Tensor& t) { return t.detach().to(at::kCPU, at::kDouble); }

// R of A = Q R, A [H,D,m] -> [H, min(D,m), m].
Tensor triangle(const Tensor& a) {
  return of_finite(a, [](const Tensor& m) { return std::get<1>(at::linalg_qr(m, "r")); });
}

Tensor frobenius(const Tensor& matrices) { return at::linalg_matrix_norm(matrices, "fro"); }

Tensor singular_values_of(const Tensor& matrices) {
  return of_finite(matrices, [](const Tensor& m) { return at::linalg_svdvals(m); });
}

// Of any matrices with the same eigenvalues but for zeros, [H,m,m] -> [H].
Tensor copying(const Tensor& matrices) {
  const auto sum = matrices.diagonal(0, 1, 2).sum(-1);
  return sum /
         of_finite(matrices, [](const Tensor& m) { return at::linalg_eigvals(m).abs(); }).sum(-1);
}

}  // namespace

FactoredHeads::FactoredHeads(const Tensor& l, const Tensor& r)
    : left(wide(l)), right(wide(r)), columns(triangle(left)), rows(triangle(right.mT())) {}

FactoredHeads query_key(const HeadMatrices& heads) { return {heads.q.mT(), heads.k}; }
FactoredHeads key_query(const HeadMatrices& heads) { return {heads.k.mT(), heads.q}; }
FactoredHeads value_output(const HeadMatrices& heads) { return {heads.v.mT(), heads.o.mT()}; }

Tensor singular_values(const FactoredHeads& m) {
  return singular_values_of(at::matmul(m.columns, m.rows.mT()));
}

Tensor layer_singular_values(const FactoredHeads& m) {
  const auto left = m.left.transpose(0, 1).flatten(1);                 // [D,H*m]
  return singular_values_of(at::matmul(left, m.right.flatten(0, 1)));  // the sum over heads
}

Tensor rank_95(const Tensor& singular_values) {
  const auto held = singular_values.square().cumsum(-1);
  const auto all = held.narrow(-1, held.size(-1) - 1, 1);
  // Exactly 95 % is enough, whatever rounding makes of it.
  const auto lacking = held < 0.95 * (1 - 1e-12) * all;
  return at::where(all.squeeze(-1) > 0, lacking.sum(-1) + 1, 0);
}

Tensor ov_copying(const HeadMatrices& heads) {
  return copying(at::matmul(wide(heads.v), wide(heads.o)));  // [H,e,e]
}

Tensor ov_copying_full(const HeadMatrices& heads, const Tensor& embedding,
                       const Tensor& unembedding) {
  const auto tokens = at::matmul(wide(unembedding).t(), wide(embedding));  // [D,D]
  return copying(
      at::matmul(at::matmul(wide(heads.o).mT(), tokens), wide(heads.v).mT()));  // [H,e,e]
}

Tensor composition(const FactoredHeads& a, const FactoredHeads& b) {
  const auto own = [](const FactoredHeads& m) {
    return frobenius(at::matmul(m.columns, m.rows.mT()));
  };
  auto norms = at::empty({a.left.size(0), b.left.size(0)}, at::kDouble);
  for (int64_t h = 0; h < norms.size(0); ++h) {
    const auto left = at::matmul(a.columns[h], at::matmul(a.right[h], b.left));  // [G,k,n]
    norms[h].copy_(frobenius(at::matmul(left, b.rows.mT())));
  }
  return norms / (own(a).unsqueeze(1) * own(b));  // [H,G]
}

}  // namespace headlab
