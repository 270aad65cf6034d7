// headlab inspect FILE.h5 [--json]: what is in a log.
#include "experiments/commands/command.h"
#include "experiments/logs/log_inspect.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

struct InspectOptions {
  std::string file;
  bool json = false;

  void visit(Arguments& a) {
    a.run("FILE", file, "a log, or a run");
    a.flag("--json", json, "print one JSON object");
  }
};

int run_inspect(const InspectOptions& o) {
  const nlohmann::ordered_json log = inspect_log(find_log(o.file));
  return print({.object = log, .text = to_text(log)}, o.json);
}

const RegisterCommand inspect_command(
    {.name = "inspect",
     .summary = "what is in a log: status, records, last values, sizes",
     .example = "headlab inspect runs/char_mha/1a2b3c4d-s1337",
     .group = Group::kLook},
    run_inspect);

}  // namespace
}  // namespace headlab
