// Whether an arm and the baseline are trained and measured alike but for their heads.
#pragma once

#include <string>
#include <vector>

#include "experiments/comparison/comparison.h"

namespace headlab {

// In what the two differ that no kind of heads explains: data, length, batch, or the examples that
// an evaluation measures. "": in nothing.
std::string unequal_terms(const TaskArm& arm, const TaskArm& baseline);

// Kinds of heads in the arm that begin by their own initialisation alone: `init_weights: host` is
// not known to them.
std::vector<std::string> kinds_without_host(const TaskArm& arm);

}  // namespace headlab
