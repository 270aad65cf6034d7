// `headlab export RUN DIR`: the model of a run in the layout that transformers opens.
#include "experiments/pretrained/export.h"

#include <fmt/format.h>

#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/runs/open_run.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string run, folder;
  bool json = false;

  void visit(Arguments& a) {
    a.run("run", run);
    a.option("folder", folder, "new folder for config.json, model.safetensors and the tokenizer",
             Arguments::kRequired);
    a.flag("--json", json, "print one JSON object");
  }
};

int run_export(const ExportOptions& o) {
  require_new_folder(o.folder);
  const auto run = open_named_run(o.run, at::kCPU);
  const auto& data = run.data_description;
  const auto exported =
      export_model(*run.model, run.experiment.model, data.shape, data.ends, o.folder,
                   [&](const fs::path& folder) {
                     if (data.tokenizer && !data.source_tokenizer)
                       write_tokenizer_folder(*data.tokenizer, folder, data.max_length);
                   });
  const auto folder = fs::canonical(o.folder).string();
  return print({.object = {{"folder", folder},
                           {"model_type", exported.model_type},
                           {"architecture", exported.architecture},
                           {"difference", exported.difference}},
                .text = fmt::format("{}: {}; read back, its states and logits of a small example "
                                    "differ by {:.2e} at most\n",
                                    folder, exported.architecture, exported.difference)},
               o.json);
}

const RegisterCommand export_command(
    {.name = "export",
     .summary = "the model of a run in the layout that transformers opens",
     .example = "headlab export runs/bert bert-cut/",
     .group = Group::kExchange},
    run_export);

}  // namespace
}  // namespace headlab
