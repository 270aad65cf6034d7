// Tasks that a training solves or does not: how many seeds of an arm did, and how soon, against the
// baseline. No torch in here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/measuring/differences.h"
#include "experiments/measuring/two_groups.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

// When a task counts as solved.
struct SolvedRule {
  std::string metric;       // at the end: "test/accuracy"
  std::string in_training;  // of the same measure during training: "val/accuracy"
  double at = 0;
  bool higher_is_better = true;

  bool met(double value) const { return higher_is_better ? value >= at : value <= at; }
};

struct SolvedArm {
  std::vector<bool> solved = {};      // at the end, by seed
  std::vector<Lasted> updates = {};   // until the first evaluation that met the rule, by seed
  std::optional<double> median = {};  // of these; none: fewer than half of the seeds got there
  // Against the baseline; none of itself, and where one of the two lacks a training.
  std::optional<ComparedTest> share = {};   // Fisher's exact test
  std::optional<ComparedTest> sooner = {};  // the log-rank test

  int64_t count() const;
  int64_t last_update() const;  // of the longest training, where none solved it
};

// The first logged step whose metrics meet the rule; where none does, the last step, censored.
Lasted updates_until(const SolvedRule& rule, const std::vector<MetricsRow>& rows);

// As compare_family(). Pairs of seeds are not made use of: what they have in common makes both
// tests report less.
void compare_solved(const SolvedArm* baseline, const std::vector<SolvedArm*>& family);

// Beside `count` of n seeds of the baseline: the most that are told to be fewer, and the fewest
// that are told to be more, by Fisher's test at `alpha` with n seeds; none: no number is.
struct TellableCounts {
  std::optional<int64_t> fewer, more;
};
TellableCounts tellable_counts(int64_t count, int64_t n, double alpha);

}  // namespace headlab
