// The statistics of a comparison: against known values, and on simulated tables.
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "experiments/measuring/paired.h"
#include "tests/catch.h"
#include "tests/normal_testing.h"

namespace headlab::test_paired {
namespace {

using Numbers = std::vector<double>;
using Ps = std::vector<std::optional<double>>;  // which torch's printing of vectors refuses

TEST_CASE("the incomplete beta function has the values of closed forms", "[compare]") {
  for (const double x : {0.0, 0.01, 0.3, 0.5, 0.77, 1.0}) {
    CHECK(incomplete_beta(1, 1, x) == Approx(x));
    CHECK(incomplete_beta(3, 1, x) == Approx(x * x * x));
    CHECK(incomplete_beta(1, 4, x) == Approx(1 - std::pow(1 - x, 4)));
    CHECK(incomplete_beta(0.5, 0.5, x) ==
          Approx(2 / std::numbers::pi * std::asin(std::sqrt(x))).margin(1e-12));
    CHECK(incomplete_beta(2.5, 7, x) == Approx(1 - incomplete_beta(7, 2.5, 1 - x)).margin(1e-12));
  }
  CHECK_THROWS_AS(incomplete_beta(0, 1, 0.5), std::invalid_argument);
  CHECK_THROWS_AS(incomplete_beta(1, 1, 1.5), std::invalid_argument);
}

TEST_CASE("p of Student's t is that of the tables", "[compare]") {
  CHECK(t_p_value(2.776445105, 4) == Approx(0.05).epsilon(1e-8));
  CHECK(t_p_value(1, 1) == Approx(0.5));
  CHECK(t_p_value(12.70620474, 1) == Approx(0.05).epsilon(1e-8));
  CHECK(t_p_value(4.604094871, 4) == Approx(0.01).epsilon(1e-8));
  CHECK(t_p_value(2.262157163, 9) == Approx(0.05).epsilon(1e-8));
  CHECK(t_p_value(1.959963985, 1e7) == Approx(0.05).epsilon(1e-5));  // the normal distribution's
  CHECK(t_p_value(0, 4) == 1);
  CHECK(t_p_value(-2.776445105, 4) == Approx(0.05).epsilon(1e-8));
  CHECK(t_p_value(1e6, 4) == Approx(0).margin(1e-20));
  CHECK(t_of_p(0.05, 4) == Approx(2.776445105).epsilon(1e-9));
  CHECK(t_of_p(0.5, 1) == Approx(1));
  CHECK(t_of_interval(5) == Approx(2.776445105).epsilon(1e-9));
  CHECK(t_of_interval(10) == Approx(2.262157163).epsilon(1e-8));
  CHECK(t_of_interval(5) == Approx(2.776445105).epsilon(1e-9));
}

TEST_CASE("a paired difference has mean, interval and p of its pairs", "[compare]") {
  // Differences 1 to 5: mean 3, deviation sqrt(2.5), t = 3 / sqrt(.5) = 4.2426, p = .0132.
  const auto paired = paired_difference({11, 22, 33, 44, 55}, {10, 20, 30, 40, 50});
  CHECK(paired.differences == Numbers{1, 2, 3, 4, 5});
  CHECK(paired.mean == Approx(3));
  CHECK(paired.deviation.value() == Approx(std::sqrt(2.5)));
  CHECK(paired.p.value() == Approx(0.01324).epsilon(1e-3));
  CHECK(paired.interval->low == Approx(3 - 2.776445 * std::sqrt(0.5)));
  CHECK(paired.interval->high == Approx(3 + 2.776445 * std::sqrt(0.5)));
  CHECK_FALSE(paired.without_spread);
  CHECK_FALSE(paired.bootstrap);
}

TEST_CASE("differences that are all 0 have p 1 and the interval [0, 0]", "[compare]") {
  const auto paired = paired_difference({1.9, 1.8, 1.7}, {1.9, 1.8, 1.7});
  CHECK(paired.p == 1);
  CHECK(paired.interval->low == 0);
  CHECK(paired.interval->high == 0);
  CHECK_FALSE(paired.without_spread);
}

TEST_CASE("differences that are equal and not 0 have no p, also where they round apart",
          "[compare]") {
  const auto paired = paired_difference({1.1, 2.1, 3.1}, {1, 2, 3});
  CHECK(paired.without_spread);
  CHECK_FALSE(paired.p);
  CHECK(paired.mean == Approx(0.1));
  CHECK(paired.interval->low == paired.interval->high);
}

TEST_CASE("one pair has a mean alone, and what cannot be paired is refused", "[compare]") {
  const auto paired = paired_difference({2}, {1});
  CHECK(paired.mean == 1);
  CHECK_FALSE(paired.p);
  CHECK_FALSE(paired.interval);
  CHECK_THROWS_AS(paired_difference({}, {}), std::invalid_argument);
  CHECK_THROWS_AS(paired_difference({1, 2}, {1}), std::invalid_argument);
  CHECK_THROWS_AS(paired_difference({1, NAN}, {1, 2}), std::invalid_argument);
}

TEST_CASE("Holm's p are those of the textbook, never fall, and count what is absent", "[compare]") {
  // Sorted .01 .02 .03 .04 times 4 3 2 1.
  const auto corrected = holm({0.01, 0.04, 0.03, 0.02});
  CHECK(corrected[0].value() == Approx(0.04));
  CHECK(corrected[3].value() == Approx(0.06));
  CHECK(corrected[2].value() == Approx(0.06));
  CHECK(corrected[1].value() == Approx(0.06));
  CHECK((holm({0.4, 0.9}) == Ps{0.8, 0.9}));
  CHECK((holm({0.6, 0.7}) == Ps{1, 1}));
  CHECK((holm({0.02, std::nullopt}) == Ps{0.04, std::nullopt}));
  CHECK(holm({}).empty());
}

TEST_CASE("of 1,000 tables of five pairs without a difference few are reported", "[compare]") {
  Normal normal;
  int singly = 0, compared = 0, families = 0;
  for (int table = 0; table < 1000; ++table) {
    // Ten arms share a baseline, whose draws are in all of their differences.
    const auto baseline = normal.draws(5);
    Ps p;
    for (int arm = 0; arm < 10; ++arm) {
      p.push_back(paired_difference(normal.draws(5), baseline).p);
      singly += *p.back() < kReportedBelow, ++compared;
    }
    bool reported = false;
    for (const auto& corrected : holm(p)) reported |= *corrected < kReportedBelow;
    families += reported;
  }
  CAPTURE(singly, families);
  CHECK(singly <= 0.065 * compared);
  CHECK(singly >= 0.035 * compared);  // a test that never reports would pass the line above
  CHECK(families <= 65);
}

TEST_CASE("a difference of two standard deviations is found in 80 % of five pairs", "[compare]") {
  Normal normal;
  int found = 0;
  for (int table = 0; table < 1000; ++table) {
    const auto differences = normal.draws(5, 2);  // their own deviation is 1
    found += *paired_difference(differences, Numbers(5, 0)).p < kReportedBelow;
  }
  CAPTURE(found);
  CHECK(found >= 800);
}

TEST_CASE("a bootstrap is formed from ten pairs on, and covers as the t interval does",
          "[compare]") {
  Normal normal;
  CHECK_FALSE(paired_difference(normal.draws(9), normal.draws(9)).bootstrap);
  const auto paired = paired_difference(normal.draws(40, 1), normal.draws(40));
  REQUIRE(paired.bootstrap);
  const double half = (paired.interval->high - paired.interval->low) / 2;
  CHECK(paired.bootstrap->low == Approx(paired.interval->low).margin(0.2 * half));
  CHECK(paired.bootstrap->high == Approx(paired.interval->high).margin(0.2 * half));
  const auto again = bootstrap_interval(paired.differences);
  CHECK(again.low == paired.bootstrap->low);
}

}  // namespace
}  // namespace headlab::test_paired
