// The differences of a metric between the arms of a task and their baseline: which are more than
// chance, and which could have been told. No torch in here.
#pragma once

#include <optional>
#include <vector>

#include "experiments/measuring/paired.h"
#include "experiments/measuring/power.h"

namespace headlab {

// Fewer seeds say too little of how far seeds differ: nothing is starred.
inline constexpr size_t kFewestSeeds = 3;

// p of a test against the baseline, and Holm's over the arms of the task.
struct ComparedTest {
  double p = 1;
  std::optional<double> corrected;
  size_t seeds = 0;

  bool reported() const {
    return seeds >= kFewestSeeds && corrected && *corrected < kReportedBelow;
  }
};

// A metric at the end of an arm's trainings, in the order of the seeds.
struct ComparedMetric {
  std::vector<double> values;
  Spread spread = {};
  std::optional<PairedDifference> difference = {};  // to the baseline; none of itself, and where
                                                    // one of the two lacks a training
  std::optional<double> corrected = {};             // Holm's p, over the arms of the task
  // The smallest difference that these seeds could have told, from the deviation of their
  // differences; none where that is not known: of fewer than kFewestSeeds, of equal ones.
  std::optional<double> tellable = {};
  bool of_two_humps = false;  // its seeds may lie in two: a mean says nothing of them
  bool at_chance = false;     // its arm has learned no more than to guess

  bool reported() const {
    return !of_two_humps && !at_chance && values.size() >= kFewestSeeds && corrected &&
           *corrected < kReportedBelow;
  }
};

// The p below which the first of `arms` differences is reported: the strictest step of Holm's. What
// is found at this one is found at any.
double strictest_alpha(size_t arms);

// Fills differences, Holm's p and what could be told. `family`: all arms of the task but the
// baseline; null: it lacks the metric, and counts in the family all the same. `baseline`: null
// likewise.
void compare_family(const ComparedMetric* baseline, const std::vector<ComparedMetric*>& family);

}  // namespace headlab
