// What is streamed of every kind of heads: the table of statistics.
#pragma once

#include <string>
#include <vector>

#include "core/attention/call/statistic.h"

namespace headlab {

// Those of rows first: the means in the order of RowStatistic, then the maxima in that of
// RowMaximum.
const std::vector<Statistic>& statistic_table();
std::vector<std::string> statistic_names();     // every one of the table, which can be streamed
std::vector<std::string> default_statistics();  // the ones that are always on

}  // namespace headlab
