// Which statistics of the table a run may log, and which it does where it names none.
#pragma once

#include <string>
#include <vector>

namespace headlab {

std::vector<std::string> statistic_names();     // every one of the table, which can be streamed
std::vector<std::string> default_statistics();  // the ones that are always on

}  // namespace headlab
