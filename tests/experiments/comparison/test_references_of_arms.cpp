// Arms that have learned no more than to guess: no stars, no speedup, and the table says so.
#include <cmath>

#include "experiments/comparison/references.h"
#include "tests/catch.h"

namespace headlab::test_references_of_arms {
namespace {

const std::vector<FinalMetric> kMetrics{{"val/loss", "val/loss", "nat", false},
                                        {"val/accuracy", "val/accuracy", "1", true}};

References quarter(int64_t tokens) {
  return {.tokens = tokens,
          .all = {{.name = "chance",
                   .how = "a guess: any of 4 values",
                   .values = {{{"loss", "nat", "loss", "mean of -ln p"}, std::log(4)},
                              {{"accuracy", "1", "accuracy", "share", true}, 0.25}}}}};
}

ComparedMetric metric_of(const std::vector<double>& values) {
  ComparedMetric metric{.values = values};
  metric.spread = spread_of(values);
  return metric;
}

ComparedArm arm_of(const std::vector<double>& accuracies) {
  ComparedArm arm;
  arm.metrics["val/accuracy"] = metric_of(accuracies);
  return arm;
}

}  // namespace

// Binomial, of 2,048 targets: 0.25 + 1.96 * sqrt(0.25 * 0.75 / 2048).
TEST_CASE("guesses reach more than their chance on few targets", "[compare]") {
  CHECK(reached_by_guesses(0.25, 2048) == Approx(0.268754).epsilon(1e-5));
  CHECK(reached_by_guesses(0.25, 1 << 30) == Approx(0.25).epsilon(1e-3));
}

TEST_CASE("an arm is above chance where its interval is", "[compare]") {
  // t of four degrees of freedom: 2.776 standard errors.
  const std::vector<double> high{0.40, 0.41, 0.42, 0.43, 0.44};  // [0.400, 0.440]
  const std::vector<double> wide{0.25, 0.31, 0.37, 0.43, 0.49};  // [0.252, 0.488]
  const std::vector<double> near{0.262, 0.266, 0.270, 0.274, 0.278};
  const auto is = [](const std::vector<double>& values, int64_t tokens) {
    return above_chance(arm_of(values), kMetrics, quarter(tokens));
  };
  CHECK(is(high, 2048) == true);
  CHECK(is(wide, 2048) == false);
  CHECK(is(near, 2048) == false);  // no more than luck of the split
  CHECK(is(near, 1 << 20) == true);
  CHECK(is({0.30}, 2048) == true);  // a seed alone has no interval
  CHECK(is({0.26}, 2048) == false);
  CHECK(above_chance({}, kMetrics, quarter(2048)) == std::nullopt);
  CHECK(above_chance(arm_of(high), kMetrics, {}) == std::nullopt);
}

TEST_CASE("where there is no accuracy the loss must be below chance", "[compare]") {
  const std::vector<FinalMetric> loss{kMetrics[0]};
  const auto is = [&](const std::vector<double>& values) {
    ComparedArm arm;
    arm.metrics["val/loss"] = metric_of(values);
    return above_chance(arm, loss, quarter(1000));
  };
  CHECK(is({1.2, 1.25, 1.3}) == true);
  CHECK(is({1.36, 1.37, 1.40}) == false);  // ln 4 is 1.386
}

TEST_CASE("a speedup is the baseline's compute to an arm's loss over the arm's own", "[compare]") {
  ComparedArm arm;
  arm.flops = 4;
  CHECK(arm.speedup() == std::nullopt);  // as of an arm that is not above chance
  arm.reach = {.bound = Reach::kAt, .flops = 6};
  CHECK(arm.speedup() == 1.5);
}

TEST_CASE("the first line says that no arm is above chance", "[compare]") {
  ComparedTask task;
  task.references = quarter(2048);
  task.arms = {arm_of({0.26}), arm_of({0.25}), {}};
  for (auto& arm : task.arms) arm.above_chance = above_chance(arm, kMetrics, task.references);
  CHECK_THAT(chance_text(task),
             Catch::StartsWith("No arm is above chance (a guess: any of 4 values)"));
  task.arms[1].above_chance = true;
  CHECK(chance_text(task).empty());
  task.arms = {{}};
  CHECK(chance_text(task).empty());  // nothing was trained
}

TEST_CASE("chance stands below the arms in the columns of its metrics", "[compare]") {
  const std::vector<std::string> head{"arm",
                                      "rate",
                                      "val/loss [nat], mean ± sd",
                                      "less mha's",
                                      "val/accuracy, higher is better, mean ± sd",
                                      "val/loss at equal time [nat]"};
  using Rows = std::vector<std::vector<std::string>>;
  CHECK(reference_rows(head, kMetrics, quarter(8)) ==
        Rows{{"chance", "-", "1.3863", "-", "0.2500", "-"}});
  CHECK(references_of_task_json(quarter(8)).at("chance").at("val/accuracy") == 0.25);
}

}  // namespace headlab::test_references_of_arms
