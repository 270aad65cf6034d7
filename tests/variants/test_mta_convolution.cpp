// The kernels of the convolved map against torch's convolution.
#include <algorithm>

#include "core/attention/attend.h"
#include "tests/isa_testing.h"
#include "tests/layers_testing.h"
#include "variants/mta/map_convolution.h"

namespace headlab::test_mta_convolution {
using namespace testing;

namespace {

constexpr int64_t B = 2, H = 3;

struct Convolved {
  Tensor out, of_map, of_kernel;
};

struct Case {
  Tensor s, allowed, kernel, g;
  int64_t T, before;

  Case(int64_t rows, int64_t keys, int64_t made, int64_t cq, int64_t ck, int64_t first_key,
       at::ScalarType type)
      : T(made), before(first_key) {
    s = random({B, H, rows, keys}).to(type), kernel = random({H, cq, ck}).to(type);
    g = random({B, H, made, keys}).to(type);
  }

  Convolved by(Backend backend) const {
    const auto map = s.detach().requires_grad_(), w = kernel.detach().requires_grad_();
    const auto out = convolve_map(map, allowed, w, T, before, backend);
    const auto gradients = torch::autograd::grad({out}, {map, w}, {g});
    return {out.detach(), gradients[0], gradients[1]};
  }
};

void require_same(const Case& c, double tolerance) {
  const auto got = c.by(Backend::kAuto), want = c.by(Backend::kEager);
  const auto near = [&](const Tensor& a, const Tensor& b) {
    return difference(a, b) <= tolerance * std::max(1.0, b.abs().max().item<double>());
  };
  REQUIRE(near(got.out, want.out));
  REQUIRE(near(got.of_map, want.of_map));
  REQUIRE(near(got.of_kernel, want.of_kernel));
}

}  // namespace

TEST_CASE("kernels convolve maps as torch does, with gradients", "[mta]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const auto& [rows, keys, made] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {6, 40, 1}, {8, 16, 5}, {33, 35, 33}})
    for (const auto& [cq, ck] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {6, 11}, {9, 4}, {1, 40}})
      for (const int64_t before : {int64_t{0}, (ck - 1) / 2, ck - 1}) {
        INFO(rows << " rows of " << keys << " keys, " << made << " made, kernel " << cq << " x "
                  << ck << ", " << before << " before");
        Case c(rows, keys, made, cq, ck, before, at::kDouble);
        require_same(c, 1e-12);
        c.allowed = at::rand({B, H, rows, keys}) < 0.5;
        require_same(c, 1e-12);
        c.allowed = at::ones({rows, keys}, at::kBool).tril(keys - rows);
        require_same(c, 1e-12);
      }
}

TEST_CASE("long maps are convolved in float32 within its rounding", "[mta]") {
  HEADLAB_WITH_EVERY_ISA;
  for (const int64_t T : {533, 1000}) {
    Case c(T, T, T, 6, 11, 5, at::kFloat);
    c.allowed = at::ones({T, T}, at::kBool).tril().triu(1 - T / 3);
    c.allowed[T / 2] = false;                               // a row without keys
    c.allowed = c.allowed & (at::rand({B, 1, 1, T}) < .9);  // and keys that are padding
    require_same(c, 2e-5);
  }
}

TEST_CASE("what is hidden may be anything", "[mta]") {
  Case c(9, 20, 9, 3, 5, 2, at::kDouble);
  c.allowed = at::ones({9, 20}, at::kBool).tril(11);
  const auto clean = c.by(Backend::kAuto);
  c.s.masked_fill_(c.allowed.logical_not(), std::numeric_limits<double>::quiet_NaN());
  const auto got = c.by(Backend::kAuto);
  REQUIRE(at::equal(got.out, clean.out));
  REQUIRE(at::equal(got.of_map, clean.of_map));
  REQUIRE(at::equal(got.of_kernel, clean.of_kernel));
}

TEST_CASE("any number of threads convolves to the same bits", "[mta]") {
  const Case c(64, 64, 64, 6, 11, 5, at::kFloat);
  const auto one = c.by(Backend::kAuto);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const auto three = c.by(Backend::kAuto);
  at::set_num_threads(before);
  REQUIRE(at::equal(one.out, three.out));
  REQUIRE(at::equal(one.of_map, three.of_map));
  REQUIRE(at::equal(one.of_kernel, three.of_kernel));
}

TEST_CASE("a convolved map has no second derivative but on backend eager", "[mta]") {
  Case c(4, 4, 4, 2, 3, 1, at::kDouble);
  c.s.requires_grad_();
  const auto twice = [&](Backend backend) {
    const auto out = convolve_map(c.s, {}, c.kernel, 4, 1, backend);
    const auto g =
        torch::autograd::grad({out.square().sum()}, {c.s}, {}, {}, /*create_graph=*/true);
    return torch::autograd::grad({g[0].sum()}, {c.s})[0];
  };
  REQUIRE(twice(Backend::kEager).abs().sum().item<double>() > 0);
  REQUIRE_THROWS_WITH(twice(Backend::kAuto), Catch::Contains("second derivatives"));
}

}  // namespace headlab::test_mta_convolution
