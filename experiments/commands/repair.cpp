// headlab repair FILE.h5: makes a log readable whose writer died.
#include <fmt/format.h>

#include "experiments/commands/command.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

struct RepairOptions {
  std::string file;

  void visit(Arguments& a) { a.run("FILE", file, "a log, or a run"); }
};

int run_repair(const RepairOptions& o) {
  const std::filesystem::path path = find_log(o.file);
  const LogRepair done = repair_log(path);
  fmt::print("{}: {}\n", path.string(), done.needed ? "repaired" : "nothing to repair");
  for (const LogRepair::Group& group : done.groups) {
    fmt::print("  {}: {} records", group.path, group.records);
    if (group.dropped > 0) fmt::print(", {} incomplete dropped", group.dropped);
    fmt::print("\n");
  }
  return kDone;
}

const RegisterCommand repair_command({.name = "repair",
                                      .summary = "makes a log readable whose writer was killed",
                                      .example = "headlab repair runs/char_mha/1a2b3c4d-s1337",
                                      .group = Group::kLook},
                                     run_repair);

}  // namespace
}  // namespace headlab
