// Scripts of headlab's sources, run by the program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace headlab {

// The script of this name, such as "log". RunError: the sources that this program was built from
// are not there any more.
std::filesystem::path script_file(const std::string& name);
// Runs it to its end, with what it prints on stderr: its exit code, or minus the signal that ended
// it. RunError where it cannot be started.
int run_script(const std::filesystem::path& script, const std::vector<std::string>& words);

}  // namespace headlab
