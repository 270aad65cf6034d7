// What this machine calls itself.
#pragma once

#include <string>

namespace headlab {

std::string host_name();

}  // namespace headlab
