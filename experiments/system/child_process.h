// Running a body in a child process: for files of unknown origin, which can crash the library that
// reads them.
#pragma once

#include <functional>
#include <string>

#include "core/errors.h"

namespace headlab {

// A child came to the end of what this program grants it, or was ended from outside. That says
// nothing of the file: whoever started the child leaves file and run as they are.
class ChildUnfinished : public RunError {
 public:
  using RunError::RunError;
};

// Runs `body` in a child process and returns its text. A RunError of the body is thrown here too.
// When the body throws anything else, or crashes, RunError says that `file`, a path, is damaged.
// ChildUnfinished: it took more time, memory or room than a file of this size needs many times
// over. No other thread may be inside `body`'s libraries meanwhile.
//
// The child is forked from a process that may have other threads. glibc's fork leaves its own locks
// (malloc, stdio) free in the child; allocators of sanitizers do not all do so. A child that waits
// without computing, as for such a lock, is started once more.
std::string in_child_process(const std::string& file, const std::function<std::string()>& body);

}  // namespace headlab
