// headlab repair FILE.h5: makes a log readable whose writer died.
#include <fmt/format.h>

#include "experiments/commands/command.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/log_walk.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

struct RepairOptions {
  std::string file;

  void visit(Arguments& a) { a.run("FILE", file, "a log, or a run"); }
};

int run_repair(const RepairOptions& o) {
  const std::filesystem::path path = find_log(o.file);
  const LogRepair done = repair_log(path);
  auto text =
      fmt::format("{}: {}\n", path.string(), done.needed ? "repaired" : "nothing to repair");
  for (const LogRepair::Group& group : done.groups) {
    text += fmt::format("  {}: {} records", group.path, group.records);
    if (group.dropped > 0) text += fmt::format(", {} incomplete dropped", group.dropped);
    text += '\n';
  }
  print_result(text);
  return kDone;
}

const RegisterCommand repair_command({.name = "repair",
                                      .summary = "makes a log readable whose writer was killed",
                                      .example = "headlab repair runs/char_mha/1a2b3c4d-s1337",
                                      .group = Group::kLook},
                                     run_repair);

}  // namespace
}  // namespace headlab
