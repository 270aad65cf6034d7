// A stretch of time as a person reads it.
#pragma once

#include <string>

namespace headlab {

// "12s", "3m 05s", "2h 07m", "4d 03h"; "?" where it is not known.
std::string duration_text(double seconds);

}  // namespace headlab
