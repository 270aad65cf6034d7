// Whether what an ablation or a pruning did to the loss is more than chance: a t test over the
// examples, corrected for everything that its table holds.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/data/task.h"
#include "experiments/logs/run_log.h"
#include "experiments/measuring/paired.h"

namespace headlab {

inline constexpr int64_t kLeastExamples = 10;  // fewer have no p

struct Significance {
  double p = std::numeric_limits<double>::quiet_NaN();     // of the test alone; NaN: there is none
  double holm = std::numeric_limits<double>::quiet_NaN();  // for all rows (Holm 1979)
  double interval = std::numeric_limits<double>::quiet_NaN();  // half of 95 %, of the mean change
  int64_t examples = 0;

  bool more_than_chance() const;  // holm < kReportedBelow
};

// Of each row of a table, given the change of the loss of each example. A row has no p where it has
// fewer than kLeastExamples, where a change is not finite, and where all are equal and not 0, which
// no t can be formed of; no row has one where the whole model's loss is the least that there is.
// Rows without examples were not measured, and nothing is corrected for them.
std::vector<Significance> significance_of(const std::vector<std::vector<double>>& rows,
                                          const Task& task);

// Its numbers by name: p_value, p_holm, p_examples, loss_delta_interval.
struct SignificanceVariable : LogVariable {
  double (*value)(const Significance& of) = nullptr;

  nlohmann::ordered_json json(const Significance& of) const;
};
std::vector<SignificanceVariable> significance_variables(const Task& task);

std::string p_text(double p);  // "0.034", "< 0.0001", "-"
// What p and its star mean, in the same words wherever they are shown.
std::string p_legend(const Task& task);
std::string star_legend();                          // "p < 0.05"
std::string significance_legend(const Task& task);  // "*: p < 0.05; p: ..."

}  // namespace headlab
