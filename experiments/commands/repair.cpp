// headlab repair FILE.h5: makes a log readable whose writer died.
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "experiments/commands/command.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

int repair(const std::string& file) {
  const std::filesystem::path path = find_log(file);
  const LogRepair done = repair_log(path);
  std::cout << path.string() << (done.needed ? ": repaired\n" : ": nothing to repair\n");
  for (const LogRepair::Group& group : done.groups) {
    std::cout << fmt::format("  {}: {} records", group.path, group.records);
    if (group.dropped > 0) std::cout << fmt::format(", {} incomplete dropped", group.dropped);
    std::cout << "\n";
  }
  return kDone;
}

const RegisterCommand repair_command({
    "repair",
    "makes a log readable whose writer was killed",
    "headlab repair runs/char_mha/1a2b3c4d-s1337",
    [](Arguments& a) -> std::function<int()> {
      const auto file = std::make_shared<std::string>();
      a.option("FILE", *file, "a log, or a run directory", Arguments::kRequired);
      return [file] { return repair(*file); };
    },
});

}  // namespace
}  // namespace headlab
