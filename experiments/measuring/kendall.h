// How alike two orders are. Pure function; no torch in here.
#pragma once

#include <vector>

namespace headlab {

// Kendall's tau (tau-b, which ties do not count against): (concordant pairs - discordant
// pairs) / sqrt(pairs untied in a * pairs untied in b). NaN where all of one are equal, or fewer
// than two. std::invalid_argument where they are not as many.
double kendall_tau(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace headlab
