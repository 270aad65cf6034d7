// How a log is repaired whose writer died. No torch in here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/files/h5.h"
#include "experiments/logs/run_log.h"

namespace headlab {

struct LogRepair {
  bool needed = false;  // false: the log was in order, and nothing was changed
  struct Group {
    std::string path;
    hsize_t records = 0;  // complete ones: all are kept
    hsize_t dropped = 0;  // rows of a record that was not complete
  };
  std::vector<Group> groups;
};

// Makes a log readable to everyone after its writer died, with every committed record; its status
// becomes `stopped`. A copy is mended and takes the place of the log when it is whole. RunError:
// the writer lives, the file is cut short or damaged, or there is no room for the copy; then no
// byte of the log has changed. ChildUnfinished as in_child_process() throws it.
LogRepair repair_log(const std::filesystem::path& path);
// The same for who holds the WriterLock already.
LogRepair repair_held_log(const std::filesystem::path& path);

// Takes out of `sites` the statistics, and the images of their maps, and out of `evals` the
// variables that the log has none for, and returns their names: it was begun without them, and a
// run goes on without them. Repairs the log first; RunError as there.
std::vector<std::string> drop_unlogged(const std::filesystem::path& path,
                                       std::vector<LogSite>& sites,
                                       std::vector<LogVariable>& evals);

}  // namespace headlab
