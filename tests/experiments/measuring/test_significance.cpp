// Whether changes of the loss are more than chance: on simulated tables, by the function that
// `ablate` calls for a table and `prune` for its one row.
#include <cmath>
#include <numbers>
#include <random>

#include "core/torch.h"
#include "experiments/measuring/significance.h"
#include "tests/catch.h"

namespace headlab::test_significance {
namespace {

using Numbers = std::vector<double>;
using Rows = std::vector<Numbers>;

// Tables of changes of the loss, normal with deviation 1: the same draws on every machine.
class Tables {
 public:
  // `effect`: the mean of the first row; of all others it is 0.
  Rows draw(size_t rows, size_t examples, double effect = 0) {
    Rows table(rows, Numbers(examples));
    for (auto& row : table)
      for (double& change : row) change = normal();
    for (double& change : table.front()) change += effect;
    return table;
  }

 private:
  double normal() {
    const double radius = std::sqrt(-2 * std::log(unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }
  double unit() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 random_{20261126};
};

// How many rows of a table have a star.
int64_t stars(const Rows& table) {
  const auto found = significance_of(table, prediction_task());
  return std::count_if(found.begin(), found.end(),
                       [](const Significance& s) { return s.more_than_chance(); });
}

}  // namespace

TEST_CASE("of tables without an effect few have a star, whatever their size", "[pruning]") {
  Tables tables;
  for (const size_t heads : {1, 16, 72, 270})  // one: what a pruning asks
    for (const size_t examples : {10, 20, 50}) {
      const int count = heads == 1 ? 1000 : heads == 16 ? 500 : heads == 72 ? 200 : 100;
      int starred = 0;
      for (int n = 0; n < count; ++n) starred += stars(tables.draw(heads, examples)) > 0;
      CAPTURE(heads, examples, starred, count);
      CHECK(starred <= 0.06 * count);
      CHECK(starred > 0.02 * count);  // a test that never finds anything would pass that line
    }
}

TEST_CASE("an effect of two standard deviations in one head of 270 is found", "[pruning]") {
  Tables tables;
  int found = 0, alone = 0;
  for (int n = 0; n < 100; ++n) {
    const auto table = tables.draw(270, 50, 2);
    const auto of = significance_of(table, prediction_task());
    found += of.front().more_than_chance();
    alone += stars(table) == 1;
  }
  CHECK(found >= 90);
  CHECK(alone >= 85);
}

TEST_CASE("fewer than ten examples have no p, and their number stands beside it", "[pruning]") {
  for (const size_t examples : {0, 1, 2, 9, 10}) {
    Numbers changes;
    for (size_t n = 0; n < examples; ++n) changes.push_back(1 + 0.01 * static_cast<double>(n));
    const auto found = significance_of({changes, changes}, prediction_task());
    INFO(examples);
    for (const auto& of : found) {
      CHECK(of.examples == static_cast<int64_t>(examples));
      CHECK(std::isnan(of.p) == (examples < 10));
      CHECK(std::isnan(of.holm) == (examples < 10));
      CHECK(of.more_than_chance() == (examples == 10));
      CHECK(std::isnan(of.interval) == (examples < 2));
    }
    if (examples == 10) CHECK(found[0].holm == Approx(2 * found[0].p));
  }
}

TEST_CASE("p is that of a t test, corrected for all rows of the table", "[pruning]") {
  // Mean 5.5, deviation 3.0277, t = 5.7446 with 9 degrees of freedom: p = .000278.
  const Numbers ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  Numbers none = ten;
  for (double& change : none) change -= 5.5;
  const auto found = significance_of({none, ten, none, ten}, prediction_task());
  CHECK(found[1].p == Approx(2.782e-4).epsilon(1e-3));
  CHECK(found[1].holm == Approx(4 * found[1].p));
  CHECK(found[0].p == Approx(1));
  CHECK(found[1].interval == Approx(2.262157 * 3.02765 / std::sqrt(10)).epsilon(1e-4));
}

TEST_CASE("what no test can be made of has no p and counts in the table all the same",
          "[pruning]") {
  const Numbers ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  auto not_a_number = ten;
  not_a_number[3] = std::nan("");
  auto rounded = Numbers(10, 0.5);
  rounded[2] += 1e-7;  // what is equal in float32 is equal
  const auto found = significance_of(
      {ten, not_a_number, Numbers(10, 0.5), rounded, Numbers(10, 0), Numbers(10, -1e-8)},
      prediction_task());
  CHECK(found[0].holm == Approx(6 * found[0].p));
  for (const size_t n : {1, 2, 3}) CHECK(std::isnan(found[n].p));
  CHECK(found[4].p == 1);
  CHECK(found[5].p == 1);
  // Rows that were not measured are no part of the table.
  const auto some = significance_of({{}, ten, {}}, prediction_task());
  CHECK(some[1].holm == some[1].p);
  CHECK(std::isnan(some[0].holm));
}

TEST_CASE("where the whole model has the least loss that there is nothing has a star",
          "[pruning]") {
  // Distances of embeddings: every change raises them.
  Numbers distances;
  for (int n = 0; n < 50; ++n) distances.push_back(0.1 + 0.001 * n);
  const auto of_sentences = significance_of({distances, distances}, embedding_task());
  for (const auto& of : of_sentences) {
    CHECK(std::isnan(of.p));
    CHECK(std::isnan(of.holm));
    CHECK(of.examples == 50);
  }
  CHECK(significance_of({distances}, prediction_task())[0].more_than_chance());
  CHECK_THAT(p_legend(embedding_task()), Catch::Contains("least at the whole model"));
}

TEST_CASE("p is written in two digits, a bound, or a dash, and there is one threshold",
          "[pruning]") {
  CHECK(p_text(0.0341) == "0.034");
  CHECK(p_text(1) == "1");
  CHECK(p_text(2e-9) == "< 0.0001");
  CHECK(p_text(std::nan("")) == "-");
  CHECK(star_legend() == "p < 0.05");
  CHECK_THAT(significance_legend(prediction_task()),
             Catch::Contains("*: p < 0.05") && Catch::Contains("fewer than 10 examples"));
  CHECK(Significance{.holm = 0.049}.more_than_chance());
  CHECK_FALSE(Significance{.holm = 0.05}.more_than_chance());
  CHECK_FALSE(Significance{}.more_than_chance());
}

}  // namespace headlab::test_significance
