// Orders of numbers, and how alike two are. Pure functions; no torch in here.
#pragma once

#include <cstddef>
#include <vector>

namespace headlab {

// 0 .. n - 1 by falling values: equals in their order, NaN last.
std::vector<size_t> falling_order(const std::vector<double>& values);

// Kendall's tau (tau-b, which ties do not count against): (concordant pairs - discordant
// pairs) / sqrt(pairs untied in a * pairs untied in b). NaN where all of one are equal, or fewer
// than two. std::invalid_argument where they are not as many.
double kendall_tau(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace headlab
