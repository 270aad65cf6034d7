// Kendall's tau against scipy.
#include <cmath>
#include <stdexcept>

#include "experiments/measuring/kendall.h"
#include "tests/catch.h"

namespace headlab::test_kendall {
namespace {

TEST_CASE("Kendall's tau is that of scipy, with ties", "[compare]") {
  // scipy.stats.kendalltau(a, b).statistic
  CHECK(kendall_tau({1, 2, 3, 4}, {10, 20, 30, 40}) == Approx(1));
  CHECK(kendall_tau({1, 2, 3, 4}, {4, 3, 2, 1}) == Approx(-1));
  CHECK(kendall_tau({12, 2, 1, 12, 2}, {1, 4, 7, 1, 0}) == Approx(-0.4714045208));
  CHECK(kendall_tau({1, 2, 3, 4, 5, 6}, {2, 1, 3, 4, 6, 5}) == Approx(0.7333333333));
  CHECK(kendall_tau({1, 2, 2, 3}, {1, 2, 3, 3}) == Approx(0.8));
}

TEST_CASE("there is no tau of what has no order", "[compare]") {
  CHECK(std::isnan(kendall_tau({1, 1, 1}, {1, 2, 3})));
  CHECK(std::isnan(kendall_tau({1}, {2})));
  CHECK(std::isnan(kendall_tau({}, {})));
  CHECK_THROWS_AS(kendall_tau({1, 2}, {1}), std::invalid_argument);
}

}  // namespace
}  // namespace headlab::test_kendall
