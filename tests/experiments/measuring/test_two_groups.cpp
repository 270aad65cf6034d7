// Fisher's exact test, the log-rank test and medians of censored times: against scipy and by hand.
#include <stdexcept>

#include "experiments/measuring/two_groups.h"
#include "tests/catch.h"
#include "tests/normal_testing.h"

namespace headlab::test_two_groups {
namespace {

using Times = std::vector<Lasted>;

TEST_CASE("Fisher's exact test has the p of scipy", "[compare]") {
  // scipy.stats.fisher_exact([[k, n - k], [l, m - l]]).pvalue
  CHECK(fisher_p_value(5, 5, 0, 5) == Approx(2 / 252.));
  CHECK(fisher_p_value(3, 3, 0, 3) == Approx(0.1));
  CHECK(fisher_p_value(8, 10, 1, 6) == Approx(0.03496503497));
  CHECK(fisher_p_value(4, 5, 1, 5) == Approx(0.2063492063));
  CHECK(fisher_p_value(1, 24, 9, 20) == Approx(0.002489485189));
  CHECK(fisher_p_value(1, 5, 4, 5) == Approx(fisher_p_value(4, 5, 1, 5)));
  CHECK(fisher_p_value(5, 5, 5, 5) == Approx(1));
  CHECK(fisher_p_value(0, 5, 0, 5) == Approx(1));
  CHECK(fisher_p_value(0, 0, 3, 5) == Approx(1));
  CHECK_THROWS_AS(fisher_p_value(6, 5, 0, 5), std::invalid_argument);
  CHECK_THROWS_AS(fisher_p_value(-1, 5, 0, 5), std::invalid_argument);
}

TEST_CASE("chi-square of the log-rank test is that of scipy, with ties and censored times",
          "[compare]") {
  // scipy.stats.logrank of CensoredData: statistic squared.
  const Times a{{6, true}, {7, true}, {10, false}, {15, true}, {19, false}, {25, false}};
  const Times b{{1, true}, {2, true}, {3, true}, {6, true}, {7, false}, {15, true}};
  CHECK(log_rank(a, b).chi_square == Approx(3.042291341));
  CHECK(log_rank(b, a).chi_square == Approx(3.042291341));
  CHECK(chi_square_p_value(3.841458821) == Approx(0.05));
  CHECK(chi_square_p_value(3.042291341) == Approx(0.08112133814));
  const auto found = log_rank({{1, true}, {3, true}}, {{2, true}, {4, true}});
  // By hand: at risk of the first group 2/4, 1/3, 1/2, 0/1: excess 2 - 4/3, variance 1/4 + 2/9 +
  // 1/4.
  CHECK(found.chi_square == Approx((2. / 3) * (2. / 3) / (13. / 18)));
}

TEST_CASE("p of the log-rank test is the share of deals that are as far apart", "[compare]") {
  const Times soon{{500, true}, {500, true}, {1000, true}, {1000, true}, {1500, true}};
  const Times never(5, {8000, false});
  const auto apart = log_rank(soon, never);
  CHECK(apart.exact);
  CHECK(apart.p == Approx(2 / 252.));  // this deal, and the one with the groups exchanged
  CHECK(chi_square_p_value(apart.chi_square) < apart.p);
  CHECK(log_rank(never, never).p == 1);
  CHECK(log_rank(soon, soon).p == 1);
  const auto many = log_rank(Times(11, {1, true}), Times(11, {2, true}));
  CHECK_FALSE(many.exact);
  CHECK(many.p == Approx(chi_square_p_value(many.chi_square)));
  CHECK(log_rank(Times(7, {1, true}), Times(7, {2, true})).p == Approx(2 / 3432.));
}

TEST_CASE("of 500 pairs of like groups of five the log-rank test calls few apart", "[compare]") {
  Normal normal;
  int called = 0;
  const auto times = [&] {
    Times all;
    for (const double z : normal.draws(5)) all.push_back(z < 0.5 ? Lasted{z, true} : Lasted{0.5});
    return all;
  };
  for (int n = 0; n < 500; ++n) called += log_rank(times(), times()).p < 0.05;
  CAPTURE(called);
  CHECK(called <= 35);
  CHECK(called >= 5);
}

TEST_CASE("the median is the time by which half got there, where half did", "[compare]") {
  CHECK(median_time({{3, true}, {1, true}, {2, true}, {9, false}, {9, false}}) == 3);
  CHECK(median_time({{1, true}, {2, true}, {9, false}, {9, false}}) == 2);  // lifelines': S <= .5
  CHECK_FALSE(median_time({{1, true}, {2, true}, {9, false}, {9, false}, {9, false}}));
  CHECK(median_time({{7, true}}) == 7);
  CHECK_FALSE(median_time({{7, false}}));
  CHECK_FALSE(median_time({}));
  // A time that is censored early leaves those at risk: 1 - 1/4, then of two 1/2.
  CHECK(median_time({{1, true}, {2, false}, {3, true}, {4, true}}) == 3);
}

}  // namespace
}  // namespace headlab::test_two_groups
