// Power of the paired t test: against scipy's noncentral t, closed forms, and simulated trials.
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "experiments/measuring/paired.h"
#include "experiments/measuring/power.h"
#include "tests/catch.h"
#include "tests/normal_testing.h"

namespace headlab::test_power {
namespace {

TEST_CASE("the noncentral t distribution is that of scipy", "[compare]") {
  // scipy.stats.nct.sf(t, freedom, shift)
  CHECK(noncentral_t_above(2, 4, 0.5) == Approx(0.12632408).epsilon(1e-8));
  CHECK(noncentral_t_above(2.776445105, 4, 3) == Approx(0.6192575371).epsilon(1e-8));
  CHECK(noncentral_t_above(1, 1, 2) == Approx(0.8488865531).epsilon(1e-8));
  CHECK(noncentral_t_above(-1.5, 2, 1) == Approx(0.9755783337).epsilon(1e-8));
  CHECK(noncentral_t_above(3, 9, -0.5) == Approx(0.002107110268).epsilon(1e-6));
  CHECK(noncentral_t_above(10, 60, 8) == Approx(0.07311474046).epsilon(1e-8));
  CHECK(noncentral_t_above(18.9, 2, 24) == Approx(0.7993735382).epsilon(1e-7));
}

TEST_CASE("without a shift, and at t = 0, the noncentral t distribution is a known one",
          "[compare]") {
  for (const int64_t freedom : {1, 2, 4, 30}) {
    for (const double t : {0.3, 1.0, 2.7})
      CHECK(noncentral_t_above(t, freedom, 0) ==
            Approx(t_p_value(t, static_cast<double>(freedom)) / 2).epsilon(1e-8));
    for (const double shift : {-1.0, 0.0, 2.0})
      CHECK(noncentral_t_above(0, freedom, shift) ==
            Approx(std::erfc(-shift / std::numbers::sqrt2) / 2).epsilon(1e-8));
  }
  CHECK(noncentral_t_above(40, 4, -40) == 0);
  CHECK_THROWS_AS(noncentral_t_above(1, 0, 0), std::invalid_argument);
  CHECK_THROWS_AS(noncentral_t_above(NAN, 4, 0), std::invalid_argument);
}

TEST_CASE("power is that of the test, and its inverse the effect that it finds in 80 %",
          "[compare]") {
  // Both tails of scipy.stats.nct at scipy.stats.t.isf(alpha / 2, n - 1), shift effect * sqrt(n).
  CHECK(paired_t_power(2, 5, 0.05) == Approx(0.9088848681).epsilon(1e-7));
  CHECK(paired_t_power(0.5, 30, 0.01) == Approx(0.5025554971).epsilon(1e-7));
  CHECK(paired_t_power(0, 5, 0.02) == Approx(0.02).epsilon(1e-7));
  CHECK(paired_t_power(-2, 5, 0.05) == Approx(paired_t_power(2, 5, 0.05)));
  // scipy.optimize.brentq of that.
  CHECK(tellable_effect(5, 0.05) == Approx(1.681996966).epsilon(1e-6));
  CHECK(tellable_effect(5, 0.05 / 18) == Approx(3.67478051).epsilon(1e-6));
  CHECK(tellable_effect(3, 0.05 / 18) == Approx(13.89485159).epsilon(1e-6));
  CHECK(tellable_effect(20, 0.025, 0.9) == Approx(0.8450380562).epsilon(1e-6));
  CHECK(tellable_effect(5, 0.05) == Approx(1.681996966).epsilon(1e-6));  // not the last one's
  CHECK_THROWS_AS(tellable_effect(1, 0.05), std::invalid_argument);
  CHECK_THROWS_AS(tellable_effect(5, 0.05, 0.01), std::invalid_argument);
  CHECK_THROWS_AS(tellable_effect(5, 0.05, 1 - 1e-12), std::invalid_argument);
}

TEST_CASE("the effect that is found in 80 % of trials is found in 80 % of simulated ones",
          "[compare]") {
  Normal normal;
  const double effect = tellable_effect(5, 0.01);
  int found = 0;
  for (int trial = 0; trial < 2000; ++trial) found += *mean_p_value(normal.draws(5, effect)) < 0.01;
  CAPTURE(found);
  CHECK(found >= 1550);
  CHECK(found <= 1650);
}

}  // namespace
}  // namespace headlab::test_power
