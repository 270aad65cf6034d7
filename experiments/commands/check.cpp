// `headlab check FILE...`: judges files of expected numbers, of every format that is known.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"

namespace headlab {
namespace {

struct CheckOptions {
  std::vector<std::string> files;
  std::string out;
  ComputeOptions compute;
  bool json = false;
};

int run(const CheckOptions& o) {
  if (!o.out.empty() && o.files.size() > 1) throw ConfigError("check --out: takes one file");
  const auto device = o.compute.apply();
  bool pass = true;
  auto objects = nlohmann::ordered_json::array();
  for (const auto& file : o.files) {
    const auto judged = judge_case(file, device, o.compute.path());
    pass = pass && all_pass(judged.verdicts);
    if (o.json) {
      objects.push_back(verdicts_json(file, judged.verdicts));
    } else {
      if (o.files.size() > 1) fmt::print("{}\n", file);
      for (const auto& verdict : judged.verdicts) fmt::print("{}\n", verdict_line(verdict));
    }
    if (!o.out.empty()) write_tensors(o.out, judged.computed);
  }
  if (o.json) fmt::print("{}\n", (objects.size() == 1 ? objects[0] : objects).dump());
  return pass ? kDone : kCheckFailed;
}

const RegisterCommand check_command({
    .name = "check",
    .summary = "judge files of expected numbers: layers, statistics, conversions, trainings, ...",
    .example = "headlab check tests/golden/nanogpt/train.safetensors",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<CheckOptions>();
          a.option("files", o->files, "safetensors files", Arguments::kRequired);
          a.option("--out", o->out, "write everything computed (one file)");
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object (several files: an array)");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
