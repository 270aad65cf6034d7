// What stands below a table of a comparison.
#pragma once

#include <string>

#include "experiments/comparison/comparison_results.h"

namespace headlab {

// What the figures of task number t were measured on and tested by, and what must be known of them.
// `rates`: of its arms.
std::string notes_text(const Comparison& comparison, const std::vector<ChosenRate>& rates,
                       const ComparedTask& task, size_t t);

}  // namespace headlab
