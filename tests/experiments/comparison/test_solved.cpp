// Tasks that are solved or not: shares of seeds, updates until then, and which tasks these are.
#include "experiments/comparison/solved.h"
#include "experiments/data/tasks/synthetic.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_solved {
namespace {

// The end is judged on the test part, and what comes before on validation.
const SolvedRule kRule{.metric = "test/accuracy", .in_training = "val/accuracy", .at = 0.9};

MetricsRow evaluated(int64_t step, double accuracy) {
  return {step, 0, 0, {{"val/accuracy", accuracy}, {"val/loss", 1}}};
}

TEST_CASE("updates until solved end at the first evaluation that meets the rule", "[compare]") {
  const std::vector<MetricsRow> rows{{10, 0, 0, {{"train/loss", 3}}},
                                     evaluated(50, 0.3),
                                     evaluated(100, 0.9),
                                     evaluated(150, 0.8)};
  const auto solved = updates_until(kRule, rows);
  CHECK(solved.happened);
  CHECK(solved.time == 100);
  const auto censored = updates_until(kRule, {evaluated(50, 0.3), {60, 0, 0, {{"lr", 1}}}});
  CHECK_FALSE(censored.happened);
  CHECK(censored.time == 60);
  const SolvedRule error{
      .metric = "val/loss", .in_training = "val/loss", .at = 1.5, .higher_is_better = false};
  CHECK(updates_until(error, rows).time == 50);
}

// Solved at these updates of 8,000; 0: not.
SolvedArm arm_of(const std::vector<int64_t>& updates) {
  SolvedArm arm;
  for (const auto at : updates) {
    arm.solved.push_back(at > 0);
    arm.updates.push_back({static_cast<double>(at > 0 ? at : 8000), at > 0});
  }
  arm.median = median_time(arm.updates);
  return arm;
}

TEST_CASE("shares and updates are tested against the baseline's, each with Holm's correction",
          "[compare]") {
  const auto baseline = arm_of({3000, 3500, 4000, 3000, 4500});
  auto never = arm_of({0, 0, 0, 0, 0}), later = arm_of({6500, 5000, 7000, 5500, 0});
  compare_solved(&baseline, {&never, &later, nullptr});
  CHECK(never.count() == 0);
  CHECK_FALSE(never.median);
  CHECK(never.last_update() == 8000);
  CHECK(never.share->p == Approx(2 / 252.));
  CHECK(*never.share->corrected == Approx(3 * 2 / 252.));  // the arm without trainings counts
  CHECK(never.share->reported());
  CHECK(never.sooner->p == Approx(2 / 252.));
  CHECK(later.count() == 4);
  CHECK(later.median == 6500);
  CHECK(later.share->p == Approx(1));
  CHECK_FALSE(later.share->reported());
  CHECK(later.sooner->p == Approx(2 / 252.));  // all of them later than each of the baseline's
  CHECK(later.sooner->reported());
}

TEST_CASE("of fewer than three seeds no share is starred, nor where a side lacks its trainings",
          "[compare]") {
  const auto baseline = arm_of({3000, 3500});
  auto never = arm_of({0, 0}), alone = arm_of({0, 0});
  compare_solved(&baseline, {&never});
  never.share->corrected = 0.001;
  CHECK_FALSE(never.share->reported());
  compare_solved(nullptr, {&alone});
  CHECK_FALSE(alone.share);
  CHECK_FALSE(alone.sooner);
}

TEST_CASE("the numbers of seeds that could be told from the baseline's are those of Fisher's test",
          "[compare]") {
  const auto of_all = tellable_counts(5, 5, 0.05);  // 1 of 5 beside 5 of 5: p = .0476
  CHECK(of_all.fewer == 1);
  CHECK_FALSE(of_all.more);
  CHECK(tellable_counts(5, 5, 0.01).fewer == 0);
  CHECK(tellable_counts(0, 5, 0.01).more == 5);
  CHECK_FALSE(tellable_counts(2, 5, 0.05).fewer);
  CHECK_FALSE(tellable_counts(3, 3, 0.05).fewer);  // three seeds: p = .1 at least
}

std::optional<double> solved_at(const std::string& kind) {
  return testing::open("kind: " + kind)->solved_at();
}

TEST_CASE("a kind of data says whether a model solves it or does not", "[compare]") {
  for (const char* kind : {"recall", "in_context_recall", "noisy_recall", "copy", "induction",
                           "first_token", "selective_copying"})
    CHECK(solved_at(kind) == kSolvedAt);
  for (const char* kind : {"compression", "memorization", "fuzzy_recall"})
    CHECK_FALSE(solved_at(kind));
}

}  // namespace
}  // namespace headlab::test_solved
