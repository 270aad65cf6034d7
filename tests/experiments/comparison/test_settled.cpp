// Whether an order of arms has settled: tau's interval over seeds, and signs of starred
// differences.
#include <cmath>
#include <stdexcept>

#include "experiments/comparison/settled.h"
#include "tests/catch.h"
#include "tests/normal_testing.h"

namespace headlab::test_settled {
namespace {

using Catch::Contains;

std::vector<std::string> names_of(size_t arms) {
  std::vector<std::string> names{"mha"};
  for (size_t arm = 1; arm < arms; ++arm) names.push_back("arm " + std::to_string(arm));
  return names;
}

// Arms `apart` in loss, each seed off by its own noise of deviation 1 at either length.
LossesBySeed spread_out(Normal& normal, size_t arms, size_t seeds, double apart) {
  LossesBySeed losses;
  for (size_t arm = 0; arm < arms; ++arm)
    losses.push_back(normal.draws(seeds, apart * static_cast<double>(arm)));
  return losses;
}

TEST_CASE("arms far apart in one order at both lengths have settled", "[compare]") {
  Normal normal;
  for (const size_t seeds : {3, 5, 8}) {
    const auto half = spread_out(normal, 6, seeds, 30), full = spread_out(normal, 6, seeds, 30);
    const auto found = settled_order(half, full, 0, {1, 2, 3, 4, 5}, names_of(6));
    CHECK(found.tau == 1);
    CHECK(found.low == 1);
    CHECK(found.high == 1);
    CHECK(found.settled);
    CHECK(found.why.empty());
  }
}

TEST_CASE("arms that are level have not settled, whatever tau comes out", "[compare]") {
  Normal normal;
  int settled = 0;
  for (int n = 0; n < 100; ++n)
    settled +=
        settled_order(spread_out(normal, 8, 5, 0), spread_out(normal, 8, 5, 0), 0, {}, names_of(8))
            .settled;
  CHECK(settled == 0);
}

TEST_CASE("tau's interval holds the draws of one seed fewer than there are", "[compare]") {
  // Arms b and c change places at half length in the third seed by so much that a mean over two
  // draws has them so where it was drawn at least once: 5 of 9 draws.
  const LossesBySeed full{{1, 1, 1}, {2, 2, 2}, {3, 3, 3}}, half{{1, 1, 1}, {2, 2, 2}, {3, 3, 0.5}};
  const auto found = settled_order(half, full, 0, {}, names_of(3));
  // Means at half 1, 2, 2.1667: as at full length. Draws with the third seed once: 1, 2, 1.75, a
  // pair of three the other way, tau 1/3; twice: 1, 2, .5, two pairs, tau -1/3.
  CHECK(found.tau == 1);
  CHECK(found.low == Approx(-1. / 3));
  CHECK(found.high == 1);
  CHECK_FALSE(found.settled);
  CHECK(found.why ==
        "tau of the orders at half and at full length is 1.00, 95 % [-0.33, 1.00], "
        "whose lower bound is not above 0.6");
}

TEST_CASE("a starred difference that had the other sign at half length has not settled",
          "[compare]") {
  // Of ten arms one alone changes places with the baseline: tau stays far above .6.
  LossesBySeed full, half;
  for (int arm = 0; arm < 10; ++arm) full.push_back(std::vector<double>(3, arm));
  half = full;
  half[1] = {-0.5, -0.5, -0.5};
  const auto found = settled_order(half, full, 0, {1, 5}, names_of(10));
  CHECK(found.tau == Approx(43. / 45));  // of 45 pairs one is the other way
  CHECK(found.low > kSettledAbove);
  CHECK_FALSE(found.settled);
  CHECK(found.why ==
        "the starred difference of arm 1 is +1.0000 at full length and -0.5000 at half");
  CHECK(settled_order(half, full, 0, {5}, names_of(10)).settled);  // it is not reported
}

TEST_CASE("many seeds are drawn from, always alike", "[compare]") {
  Normal normal;
  const auto half = spread_out(normal, 8, 10, 1), full = spread_out(normal, 8, 10, 1);
  const auto found = settled_order(half, full, 0, {}, names_of(8));
  const auto again = settled_order(half, full, 0, {}, names_of(8));
  CHECK(found.low < found.tau);
  CHECK(found.low == again.low);
  CHECK(found.high == again.high);
}

TEST_CASE("where no interval can be formed the order has not settled, and it is said why",
          "[compare]") {
  const auto two = settled_order({{1, 1}, {2, 2}}, {{1, 1}, {2, 2}}, 0, {}, names_of(2));
  CHECK(two.tau == 1);
  CHECK(std::isnan(two.low));
  CHECK_FALSE(two.settled);
  CHECK_THAT(two.why, Contains("2 seeds"));
  const auto alone = settled_order({{1, 2, 3}}, {{1, 2, 3}}, 0, {}, names_of(1));
  CHECK(std::isnan(alone.tau));
  CHECK_FALSE(alone.settled);
  CHECK_THAT(alone.why, Contains("no order"));
  CHECK_THROWS_AS(settled_order({{1, 2}}, {{1, 2, 3}}, 0, {}, names_of(1)), std::invalid_argument);
  CHECK_THROWS_AS(settled_order({{1, NAN}}, {{1, 2}}, 0, {}, names_of(1)), std::invalid_argument);
  CHECK_THROWS_AS(settled_order({}, {}, 0, {}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace headlab::test_settled
