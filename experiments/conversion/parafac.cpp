#include "experiments/conversion/parafac.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

#include "core/attention/random.h"
#include "core/torch.h"

namespace headlab {
namespace {

// rhs Gram^-1 for a Gram matrix [R,R]. Where columns of the factors are nearly parallel (or 0), the
// directions that the data say nothing of get 0 instead of noise.
Tensor solve(const Tensor& rhs, const Tensor& gram) {
  constexpr double kParallel = 1e-7;  // pivots that far apart: a condition number of 1e14
  const auto [factor, info] = at::linalg_cholesky_ex(gram);
  const auto pivots = factor.diagonal();
  const bool sound = info.item<int>() == 0 &&
                     pivots.min().item<double>() > kParallel * pivots.max().item<double>();
  if (sound) return at::cholesky_solve(rhs.t(), factor).t();
  return at::matmul(rhs, at::linalg_pinv(gram, /*rcond=*/1e-13, /*hermitian=*/true));
}

Tensor gram(const Tensor& factor) { return at::matmul(factor.t(), factor); }  // [R,R]

// sum_h w_h^T x_h: w [H,d,D], x [H,d,R] -> [D,R]
Tensor over_heads(const Tensor& w, const Tensor& x) {
  return at::matmul(w.flatten(0, 1).t(), x.flatten(0, 1));
}

double squared_norm(const Tensor& q, const Tensor& k) {                                // of P
  const auto rows = [](const Tensor& w) { return at::matmul(w, w.transpose(1, 2)); };  // [H,d,d]
  return (rows(q) * rows(k)).sum().item<double>();
}

// The gauge of parafac(): a column's length moves freely between the factors.
void balance(Cp& cp) {
  const auto length = [](const Tensor& factor) {
    return at::linalg_vector_norm(factor, 2, {0}, /*keepdim=*/true);  // [1,R]
  };
  const auto a = length(cp.a), m = length(cp.m), b = length(cp.b);
  const auto each = (a * m * b).sqrt();
  const auto rescale = [](const Tensor& factor, const Tensor& by, const Tensor& from) {
    return factor * by / from.masked_fill(from == 0, 1);
  };
  cp.a = rescale(cp.a, each, a);
  cp.m = rescale(cp.m, at::ones_like(m), m);
  cp.b = rescale(cp.b, each, b);
}

}  // namespace

double cp_error(const Tensor& q, const Tensor& k, const Cp& cp) {
  double apart = 0;
  for (int64_t h = 0; h < q.size(0); ++h) {
    const auto product = at::matmul(q[h].t(), k[h]);         // [D,D]
    const auto near = at::matmul(cp.a * cp.m[h], cp.b.t());  // [D,D]
    apart += (product - near).square_().sum().item<double>();
  }
  return apart == 0 ? 0 : std::sqrt(apart / squared_norm(q, k));
}

Cp block_start(const Tensor& q, const Tensor& k, int64_t rank) {
  const int64_t H = q.size(0);
  // q_h^T k_h = Uq (Rq Rk^T) Uk^T with orthonormal Uq, Uk: its triplets are those of a small matrix
  const auto [uq, rq] = at::linalg_qr(q.transpose(1, 2));  // [H,D,p], [H,p,d]
  const auto [uk, rk] = at::linalg_qr(k.transpose(1, 2));
  const auto [u, s, vt] = at::linalg_svd(at::matmul(rq, rk.transpose(1, 2)));  // [H,p,p], [H,p]
  const int64_t p = s.size(1), found = std::min(rank, H * p);
  const auto columns = [root = s.sqrt().unsqueeze(1)](const Tensor& w) {  // [H,D,p] -> [D,H*p]
    return (w * root).transpose(0, 1).flatten(1);
  };
  const auto largest = std::get<1>(s.flatten().topk(found));           // indices among [H*p]
  const auto owner = at::eye(H, s.options()).repeat_interleave(p, 1);  // [H,H*p]
  const auto chosen = [&](const Tensor& all) {
    return at::constant_pad_nd(all.index_select(1, largest), {0, rank - found});
  };
  return {chosen(columns(at::matmul(uq, u))), chosen(owner),
          chosen(columns(at::matmul(uk, vt.transpose(1, 2))))};
}

Cp random_start(const Tensor& q, int64_t rank, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(mix_bits(seed));
  const auto uniform = [&](int64_t rows) { return at::rand({rows, rank}, generator, q.options()); };
  const auto a = uniform(q.size(2)), m = uniform(q.size(0)), b = uniform(q.size(2));
  return {a, m, b};
}

Cp als(const Tensor& q, const Tensor& k, Cp cp, const AlsOptions& options) {
  const double whole = squared_norm(q, k);
  if (whole == 0) return {at::zeros_like(cp.a), cp.m, at::zeros_like(cp.b)};
  double before = 0;
  for (int64_t sweep = 0; sweep < options.sweeps; ++sweep) {
    auto wb = at::matmul(k, cp.b);  // [H,d,R]
    cp.a = solve(over_heads(q, wb * cp.m.unsqueeze(1)), gram(cp.m) * gram(cp.b));
    const auto wa = at::matmul(q, cp.a);  // [H,d,R]
    cp.m = solve((wa * wb).sum(1), gram(cp.a) * gram(cp.b));
    const auto rhs = over_heads(k, wa * cp.m.unsqueeze(1));  // [D,R]
    const auto grams = gram(cp.a) * gram(cp.m);
    cp.b = solve(rhs, grams);
    const double inner = (rhs * cp.b).sum().item<double>();
    const double own = (grams * gram(cp.b)).sum().item<double>();
    const double error = std::sqrt(std::max(0., whole - 2 * inner + own) / whole);
    if (sweep > 0 && std::abs(before - error) < options.tolerance) break;
    before = error;
  }
  return cp;
}

Cp parafac(const Tensor& q, const Tensor& k, int64_t rank, int64_t random_starts) {
  const auto start = block_start(q, k, rank);
  Cp best = als(q, k, start);
  double least = cp_error(q, k, best);
  const auto consider = [&](const Cp& cp) {
    const double error = cp_error(q, k, cp);
    if (error >= least) return;
    best = cp, least = error;
  };
  consider(start);  // rounding may have led away from an exact one
  for (int64_t seed = 0; seed < random_starts; ++seed)
    consider(als(q, k, random_start(q, rank, static_cast<uint64_t>(seed))));
  balance(best);
  return best;
}

}  // namespace headlab
