// How the user calls the program, so that a command it prints works when pasted.
#pragma once

#include <string>

namespace headlab {

// HEADLAB_COMMAND, which scripts/headlab sets to what it was called by; else "headlab".
std::string program_name();

}  // namespace headlab
