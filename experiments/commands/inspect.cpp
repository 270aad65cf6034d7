// headlab inspect FILE.h5 [--json]: what is in a log.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/commands/command.h"
#include "experiments/logs/log_inspect.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

struct InspectOptions {
  std::string file;
  bool json = false;
};

const RegisterCommand inspect_command({
    "inspect",
    "what is in a log: status, records, last values, sizes",
    "headlab inspect runs/char_mha/1a2b3c4d-s1337",
    [](Arguments& a) -> std::function<int()> {
      const auto options = std::make_shared<InspectOptions>();
      a.option("FILE", options->file, "a log, or a run directory", Arguments::kRequired);
      a.flag("--json", options->json, "one JSON object");
      return [options] {
        const nlohmann::ordered_json log = inspect_log(find_log(options->file));
        std::cout << (options->json ? log.dump(2) + "\n" : to_text(log));
        return kDone;
      };
    },
});

}  // namespace
}  // namespace headlab
