// `headlab check FILE...`: judges files of expected numbers, of every format that is known.
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

struct CheckOptions {
  std::vector<std::string> files;
  std::string out, model;
  ComputeOptions compute;
  bool json = false;

  void visit(Arguments& a) {
    a.option("files", files, "safetensors files", Arguments::kRequired);
    a.option("--out", out, "write everything computed (one file)");
    a.option("--model", model,
             "of a whole model's file: a folder in Hugging Face's layout, a .gguf file or a run");
    compute.visit(a);
    a.flag("--json", json, "print one JSON object (several files: an array)");
  }
};

int run_check(const CheckOptions& o) {
  if (!o.out.empty() && o.files.size() > 1) throw ConfigError("check --out: takes one file");
  const auto compute = o.compute.apply();
  std::optional<OutputFile> out;
  if (!o.out.empty())
    out.emplace(o.out, std::vector<std::filesystem::path>{o.files.at(0), o.model});
  bool pass = true;
  auto objects = nlohmann::ordered_json::array();
  for (const auto& file : o.files) {
    const auto judged = judge_case(file, compute.device, compute.backend, o.model);
    pass = pass && all_pass(judged.verdicts);
    objects.push_back(verdicts_json(file, judged.verdicts));
    const auto title = o.files.size() > 1 ? file + "\n" : "";
    if (!o.json) print({.object = {}, .text = title + verdicts_text(judged.verdicts)}, false);
    if (out)
      out->write([&](const std::filesystem::path& to) { write_tensors(to, judged.computed); });
  }
  if (o.json) print({.object = objects.size() == 1 ? objects[0] : objects, .text = {}}, true);
  return pass ? kDone : kCheckFailed;
}

const RegisterCommand check_command(
    {.name = "check",
     .summary = "judge files of expected numbers: layers, statistics, conversions, trainings, ...",
     .example = "headlab check tests/golden/nanogpt/train.safetensors",
     .group = Group::kExtend},
    run_check);

}  // namespace
}  // namespace headlab
