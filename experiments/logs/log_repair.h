// How a log is repaired whose writer died. No torch in here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/files/h5.h"
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
// becomes `stopped`. RunError: the writer lives, or the file is cut short or damaged (it is then
// left as it is).
LogRepair repair_log(const std::filesystem::path& path);
// The same for who holds the WriterLock already.
LogRepair repair_held_log(const std::filesystem::path& path);

// Takes out of `site` the statistics, and the images of its maps, that the log has no variable
// for, and returns their names: it was begun without them, and a run goes on without them. Repairs
// the log first. RunError as there.
std::vector<std::string> drop_unlogged(const std::filesystem::path& path, LogSite& site);
// The same of the variables of /eval.
std::vector<std::string> drop_unlogged(const std::filesystem::path& path,
                                       std::vector<LogVariable>& evals);

}  // namespace headlab
