// Running a body in a child process: for files of unknown origin, which can crash the library that
// reads them.
#pragma once

#include <functional>
#include <string>

namespace headlab {

// Runs `body` in a child process and returns its text. A RunError of the body is thrown here too;
// when it throws anything else or crashes, takes more than some seconds of computing, 2 GiB of
// memory or lets the file grow by 64 MiB, RunError says that `file`, a path, is damaged.
// No other thread may be inside `body`'s libraries meanwhile.
std::string in_child_process(const std::string& file, const std::function<std::string()>& body);

}  // namespace headlab
