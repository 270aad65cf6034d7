// The Python that opens logs, run by the program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace headlab {

// What opens logs in Python: scripts/log, or headlab-log where pip installed the program. RunError:
// the sources that this program was built from, or that command, are not there any more.
std::filesystem::path log_command();
// Runs it to its end, with what it prints on stderr: its exit code, or minus the signal that ended
// it. RunError where it cannot be started.
int run_script(const std::filesystem::path& script, const std::vector<std::string>& words);

}  // namespace headlab
