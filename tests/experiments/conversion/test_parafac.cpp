// The decomposition of query-key products against one that forms them, and where it is degenerate.
#include "experiments/conversion/parafac.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_parafac {
using namespace testing;

namespace {

Tensor products(const Tensor& q, const Tensor& k) {  // -> P [D,H,D]
  return at::matmul(q.transpose(1, 2), k).transpose(0, 1).contiguous();
}

Tensor composed(const Cp& cp) { return at::einsum("ir,hr,jr->ihj", {cp.a, cp.m, cp.b}); }

double plain_error(const Tensor& q, const Tensor& k, const Cp& cp) {
  const auto p = products(q, k);
  return ((p - composed(cp)).norm() / p.norm()).item<double>();
}

// Alternating least squares as in the textbook: P unfolded, Khatri-Rao products, lstsq.
Cp plain_als(const Tensor& q, const Tensor& k, Cp cp, int64_t sweeps) {
  const auto p = products(q, k);  // [D,H,D]
  const auto khatri_rao = [](const Tensor& x, const Tensor& y) {
    return at::einsum("ir,jr->ijr", {x, y}).flatten(0, 1);
  };
  const auto fit = [](const Tensor& basis, const Tensor& unfolded) {
    return std::get<0>(at::linalg_lstsq(basis, unfolded)).t();
  };
  for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
    cp.a = fit(khatri_rao(cp.m, cp.b), p.flatten(1).t());
    cp.m = fit(khatri_rao(cp.a, cp.b), p.transpose(0, 1).flatten(1).t());
    cp.b = fit(khatri_rao(cp.a, cp.m), p.permute({2, 0, 1}).flatten(1).t());
  }
  return cp;
}

// Heads that draw on common directions, and a little of their own. H 5, d 4, D 11.
std::pair<Tensor, Tensor> shared_heads(double noise) {
  torch::manual_seed(3);
  const auto common = random({3, 11});
  const auto draw = [&] {
    return at::matmul(random({5, 4, 3}), common) + noise * random({5, 4, 11});
  };
  const auto q = draw();
  return {q, draw()};
}

}  // namespace

TEST_CASE("sweeps without the product give what sweeps with it give", "[parafac]") {
  const auto [q, k] = shared_heads(0.3);
  for (const int64_t rank : {1, 4, 9}) {
    const auto start = random_start(q, rank, 7);
    for (const int64_t sweeps : {1, 2, 10}) {
      const auto ours = als(q, k, start, {.sweeps = sweeps, .tolerance = 0});
      const auto plain = plain_als(q, k, start, sweeps);
      INFO("rank " << rank << ", sweeps " << sweeps);
      CHECK(difference(ours.a, plain.a) < 1e-8 * plain.a.abs().max().item<double>());
      CHECK(difference(ours.m, plain.m) < 1e-8 * plain.m.abs().max().item<double>());
      CHECK(difference(ours.b, plain.b) < 1e-8 * plain.b.abs().max().item<double>());
      CHECK(cp_error(q, k, ours) == Approx(plain_error(q, k, plain)).epsilon(1e-9));
    }
  }
}

TEST_CASE("each sweep lowers the error and the last ones hardly do", "[parafac]") {
  const auto [q, k] = shared_heads(0.3);
  const auto start = random_start(q, 6, 1);
  double before = cp_error(q, k, als(q, k, start, {.sweeps = 1}));
  for (const int64_t sweeps : {2, 4, 8, 16, 32}) {
    const double error = cp_error(q, k, als(q, k, start, {.sweeps = sweeps, .tolerance = 0}));
    CHECK(error < before);
    before = error;
  }
  const double ended = cp_error(q, k, als(q, k, start, {.sweeps = 5000, .tolerance = 1e-4}));
  const double later = cp_error(q, k, als(q, k, start, {.sweeps = 5000, .tolerance = 1e-7}));
  CHECK(later < ended);
  CHECK(ended - later < 0.05);
}

TEST_CASE("the block start is the best that features of single heads can do", "[parafac]") {
  const auto [q, k] = shared_heads(0.3);
  const auto p = products(q, k).transpose(0, 1);                                     // [H,D,D]
  const auto singular = std::get<0>(at::linalg_svdvals(p).flatten().sort(0, true));  // all heads'
  for (const int64_t rank : {1, 6, 19}) {
    const auto start = block_start(q, k, rank);
    const auto left_out = singular.slice(0, rank).norm() / singular.norm();
    CHECK(cp_error(q, k, start) == Approx(left_out.item<double>()).epsilon(1e-9));
    CHECK(difference((start.m != 0).sum(0), at::ones({rank}, at::kLong)) == 0);
  }
  CHECK(cp_error(q, k, block_start(q, k, 5 * 4)) < 1e-12);
}

TEST_CASE("the decomposition is at least as good as its block start and each random one",
          "[parafac]") {
  const auto [q, k] = shared_heads(0.05);
  const auto best = parafac(q, k, 4, 3);
  const double error = cp_error(q, k, best);
  CHECK(error == Approx(plain_error(q, k, best)).epsilon(1e-9));
  CHECK(error <= cp_error(q, k, als(q, k, block_start(q, k, 4))) + 1e-12);
  for (const uint64_t seed : {0, 1, 2})
    CHECK(error <= cp_error(q, k, als(q, k, random_start(q, 4, seed))) + 1e-12);
  CHECK(error < cp_error(q, k, block_start(q, k, 4)));
  CHECK(difference(random_start(q, 4, 2).a, random_start(q, 4, 2).a) == 0);
  CHECK(difference(random_start(q, 4, 2).a, random_start(q, 4, 3).a) > 0);
  CHECK(difference(parafac(q, k, 4, 3).m, best.m) == 0);

  const auto one = at::ones({4}, at::kDouble);
  CHECK(difference(best.m.norm(2, 0), one) < 1e-12);
  CHECK(difference(best.a.norm(2, 0), best.b.norm(2, 0)) < 1e-10);
}

TEST_CASE("a product of low rank is found again", "[parafac]") {
  torch::manual_seed(5);
  const auto a = random({11, 3}), m = random({6, 3}), b = random({11, 3});
  // q_h = (a diag(m_h))^T and k_h = b^T, of head size 3
  const auto q = (a.unsqueeze(0) * m.unsqueeze(1)).transpose(1, 2).contiguous();  // [6,3,11]
  const auto k = b.t().expand({6, 3, 11}).contiguous();
  CHECK(cp_error(q, k, {a, m, b}) < 1e-14);
  CHECK(cp_error(q, k, parafac(q, k, 3, 5)) < 1e-3);
  CHECK(cp_error(q, k, parafac(q, k, 2, 5)) > 1e-2);
}

TEST_CASE("degenerate products are decomposed without a not-a-number", "[parafac]") {
  torch::manual_seed(9);
  const auto finite = [](const Cp& cp) {
    return cp.a.isfinite().all().item<bool>() && cp.m.isfinite().all().item<bool>() &&
           cp.b.isfinite().all().item<bool>();
  };
  const auto zero = at::zeros({3, 4, 7}, at::kDouble);
  const auto nothing = parafac(zero, zero, 5, 2);
  CHECK(finite(nothing));
  CHECK(cp_error(zero, zero, nothing) == 0);

  // Equal heads of rank 1: every further feature is parallel to the first.
  const auto row = random({1, 1, 7}).expand({3, 4, 7}).contiguous();
  const auto parallel = parafac(row, row, 6, 3);
  CHECK(finite(parallel));
  CHECK(cp_error(row, row, parallel) < 1e-6);

  // Heads wider than the model: fewer singular triplets than features.
  const auto wide = random({2, 9, 3});
  const auto more = parafac(wide, wide, 10, 2);
  CHECK(finite(more));
  CHECK(cp_error(wide, wide, more) < 1e-6);
}

}  // namespace headlab::test_parafac
