// When a training that chooses a rate is clearly behind.
#include "experiments/comparison/comparison_stages.h"
#include "tests/catch.h"

namespace headlab::test_given_up {
namespace {

std::vector<MetricsRow> evaluations(const std::vector<std::pair<int64_t, double>>& losses) {
  std::vector<MetricsRow> rows;
  for (const auto& [step, loss] : losses)
    rows.push_back({.step = step, .values = {{"val/loss", loss}}});
  return rows;
}

const auto kBest = evaluations({{20, 4}, {25, 3}, {30, 2.5}, {50, 2}, {100, 1.5}});

}  // namespace

TEST_CASE("a training is behind where its half is worse than another's quarter", "[rates]") {
  REQUIRE(why_behind(evaluations({{25, 5}, {50, 3.1}}), kBest, 100) ==
          "at step 50 its loss is 3.1000; another rate had 3.0000 after a quarter of the steps");
  REQUIRE(why_behind(evaluations({{25, 5}, {50, 3}}), kBest, 100).empty());
  // The other had lost 1 between its first evaluation and its quarter: 5 % of that is the margin.
  REQUIRE(why_behind(evaluations({{25, 5}, {50, 3.04}}), kBest, 100).empty());
  REQUIRE_FALSE(why_behind(evaluations({{25, 5}, {50, 3.06}}), kBest, 100).empty());
  REQUIRE_FALSE(why_behind(evaluations({{25, 5}, {60, 3.1}, {70, 1}}), kBest, 100).empty());
}

TEST_CASE(
    "before its half, in its last quarter and without a quarter to compare no training is behind",
    "[rates]") {
  REQUIRE(why_behind(evaluations({{25, 9}, {49, 9}}), kBest, 100).empty());
  REQUIRE_FALSE(why_behind(evaluations({{50, 9}, {74, 9}}), kBest, 100).empty());
  REQUIRE(why_behind(evaluations({{50, 9}, {75, 9}}), kBest, 100).empty());
  REQUIRE(why_behind(evaluations({{50, 9}}), evaluations({{50, 2}, {100, 1}}), 100).empty());
  REQUIRE(why_behind({}, kBest, 100).empty());
}

}  // namespace headlab::test_given_up
