// How alike two orders are. Pure function; no torch in here.
#pragma once

#include <vector>

namespace headlab {

// Kendall's tau (tau-b, which ties do not count against): of pairs i, j those that a and b have in
// one order less those in the other. NaN where all of one are equal, or fewer than two.
// std::invalid_argument where they are not as many.
double kendall_tau(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace headlab
