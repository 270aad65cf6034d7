// How the user calls the program, so that a command it prints works when pasted.
#pragma once

#include <string>

namespace headlab {

// HEADLAB_COMMAND, which scripts/headlab sets to what it was called by; else "headlab".
std::string program_name();

// Another script beside the program, such as "report", as the caller may paste it.
std::string script_name(const std::string& script);

// A command line that is written with `headlab` in front, as the caller may paste it; where there
// are several, each line. `name`: what stands there in place of it.
std::string as_called(const std::string& commands, const std::string& name = program_name());

}  // namespace headlab
