// Differences of a family of arms: what is starred, what could have been told, and both on tables
// of losses that are dealt to names by chance.
#include <algorithm>
#include <cmath>
#include <random>

#include "experiments/measuring/differences.h"
#include "tests/catch.h"
#include "tests/normal_testing.h"

namespace headlab::test_differences {
namespace {

using Numbers = std::vector<double>;

std::vector<ComparedMetric> compared(const Numbers& baseline, const std::vector<Numbers>& arms) {
  std::vector<ComparedMetric> metrics;
  for (const auto& values : arms) metrics.push_back({.values = values});
  std::vector<ComparedMetric*> family;
  for (auto& metric : metrics) family.push_back(&metric);
  const ComparedMetric of_baseline{.values = baseline};
  compare_family(&of_baseline, family);
  return metrics;
}

const Numbers kBaseline{1.65, 1.66, 1.64, 1.655, 1.645};
const Numbers kWorse{1.75, 1.77, 1.73, 1.76, 1.74};  // by .1, .11, .09, .105, .095
const Numbers kLevel{1.652, 1.65, 1.66, 1.64, 1.655};

TEST_CASE("what could be told is that of Holm's strictest step and of the arm's own deviation",
          "[compare]") {
  const auto arms = compared(kBaseline, {kWorse, kLevel});
  CHECK(arms[0].reported());
  CHECK_FALSE(arms[1].reported());
  // The deviation of .1, .11, .09, .105, .095 is sqrt(.00025 / 4); two arms: p below .025.
  CHECK(arms[0].tellable.value() ==
        Approx(std::sqrt(0.00025 / 4) * tellable_effect(5, 0.05 / 2)).epsilon(1e-6));
  // The same by scipy (test_power.cpp).
  CHECK(arms[0].tellable.value() == Approx(0.0162067307).epsilon(1e-5));
  CHECK(*arms[1].tellable > *arms[0].tellable);  // whose pairs differ by more
}

TEST_CASE("an arm that lacks the metric counts in the family", "[compare]") {
  ComparedMetric worse{.values = kWorse}, alone{.values = kWorse};
  const ComparedMetric baseline{.values = kBaseline};
  compare_family(&baseline, {&worse, nullptr, nullptr});
  compare_family(&baseline, {&alone});
  CHECK(*worse.corrected == Approx(3 * *worse.difference->p));
  CHECK(*alone.corrected == Approx(*alone.difference->p));
  CHECK(*worse.tellable > *alone.tellable);
  ComparedMetric none{.values = kWorse};
  compare_family(nullptr, {&none});
  CHECK_FALSE(none.difference);
  CHECK_FALSE(none.reported());
}

TEST_CASE("of fewer than three seeds nothing is starred, and nothing could be told", "[compare]") {
  const auto two = compared({1.65, 1.66}, {{1.75, 1.7600001}})[0];
  REQUIRE(two.corrected);
  CHECK(*two.corrected < 0.001);
  CHECK_FALSE(two.reported());
  CHECK_FALSE(two.tellable);
  CHECK(compared({1.65, 1.66, 1.67}, {{1.75, 1.7600001, 1.77}})[0].reported());
}

TEST_CASE("equal differences could tell nothing, for they have no deviation", "[compare]") {
  CHECK_FALSE(compared(kBaseline, {kBaseline})[0].tellable);
}

TEST_CASE("a mean of two humps is never starred", "[compare]") {
  ComparedMetric arm{.values = {2.9, 2.8, 2.85, 2.87}, .of_two_humps = true};
  const ComparedMetric baseline{.values = {0.1, 0.12, 0.11, 0.1}, .of_two_humps = true};
  compare_family(&baseline, {&arm});
  REQUIRE(arm.corrected);
  CHECK(*arm.corrected < 0.001);
  CHECK_FALSE(arm.reported());
  CHECK_FALSE(arm.tellable);
}

// Tables in which losses of one kind of heads are dealt at random to three names.
struct NullTables {
  int tables = 0, with_a_star = 0;
  // Of arms that were made worse by twice the smallest difference that such tables can tell.
  int planted = 0, found = 0;
};

NullTables null_tables(Numbers losses, int tables) {
  constexpr size_t kNames = 3;
  const size_t seeds = losses.size() / kNames;
  // A difference of two draws has twice their variance. This is one figure for all tables: a
  // table's own is of the very differences that are tested.
  const double tellable = std::sqrt(2.0) * *spread_of(losses).deviation *
                          tellable_effect(std::ssize(losses) / kNames, strictest_alpha(kNames - 1));
  std::mt19937_64 random(42);
  NullTables counted{.tables = tables};
  for (int table = 0; table < tables; ++table) {
    for (size_t left = losses.size(); left > 1; --left)  // std::shuffle is not alike everywhere
      std::swap(losses[left - 1], losses[random() % left]);
    std::vector<Numbers> dealt;
    for (size_t name = 0; name < kNames; ++name)
      dealt.emplace_back(losses.begin() + name * seeds, losses.begin() + (name + 1) * seeds);
    const auto arms = compared(dealt[0], {dealt[1], dealt[2]});
    counted.with_a_star += arms[0].reported() || arms[1].reported();
    for (double& loss : dealt[1]) loss += 2 * tellable;
    ++counted.planted;
    counted.found += compared(dealt[0], {dealt[1], dealt[2]})[0].reported();
  }
  return counted;
}

void check_null_tables(const Numbers& losses) {
  const auto counted = null_tables(losses, 200);
  CAPTURE(counted.with_a_star, counted.found);
  CHECK(counted.with_a_star <= 0.06 * counted.tables);
  CHECK(counted.found >= 0.9 * counted.planted);
}

TEST_CASE("losses of one kind under three names are rarely starred, and what is planted is found",
          "[compare]") {
  Normal normal;
  check_null_tables(normal.draws(20, 1.656, 0.01));  // plain heads' mean and deviation on char
}

TEST_CASE("of many draws of twenty losses as many tables have a false star as p says",
          "[compare]") {
  Normal normal;
  int with_a_star = 0;
  for (int n = 0; n < 20; ++n) with_a_star += null_tables(normal.draws(20), 200).with_a_star;
  CAPTURE(with_a_star);
  CHECK(with_a_star <= 0.06 * 4000);
  CHECK(with_a_star >= 0.02 * 4000);  // a table that never has a star would pass the line above
}

}  // namespace
}  // namespace headlab::test_differences
