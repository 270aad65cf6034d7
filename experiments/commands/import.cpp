// `headlab import DIR|FILE.gguf --out RUN`: a model that others trained becomes a run.
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/data/fetched_data.h"
#include "experiments/models/finite_weights.h"
#include "experiments/pretrained/imported_tokenizer.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_manifest.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ImportOptions {
  std::string model, out, dtype = "fp32";
  bool json = false;

  void visit(Arguments& a) {
    a.option("model", model,
             "a folder with config.json and model.safetensors (or its shards), or a .gguf file",
             Arguments::kRequired);
    a.option("--out", out, "new run directory", Arguments::kRequired);
    a.choice("--dtype", dtype, "type of its weights; bf16: half the memory, not to be trained",
             {"fp32", "bf16"});
    a.flag("--json", json, "print one JSON object");
  }
};

// As if a run had made it, with no update behind it.
Experiment experiment_of(const HuggingFaceModel& made, const ImportOptions& o) {
  Experiment experiment;
  experiment.name = fs::weakly_canonical(o.out).filename().string();
  experiment.dtype = o.dtype;
  experiment.model = made.options;
  ConfigNode data;
  data.set("kind", write_text("none"));
  if (made.shape.context > 0)
    data.set("context", ConfigNode::scalar(std::to_string(made.shape.context), false));
  Problems problems;
  experiment.data.read(data, "data", problems);
  experiment.check([&](const std::string& field, const std::string& what) {
    problems.add({}, field == "name" ? "--out" : field, what);
  });
  problems.raise();
  return experiment;
}

// Its weights under the names of their file, and ours.
NamedTensors by_both_names(const HuggingFaceModel& made) {
  const auto ours = module_tensors(*made.model);
  NamedTensors named;
  for (const auto& rule : made.tensors)
    for (const auto& name : rule.ours)
      named[fmt::format("{}, here {}", rule.name, name)] = ours.at(name);
  return named;
}

std::string lines(const std::vector<std::string>& sentences) {
  std::string all;
  for (const auto& sentence : sentences) all += sentence + ".\n";
  return all;
}

int run_import(const ImportOptions& o) {
  require_free(o.out);
  require_fetched(fs::path(o.model));
  const at::ScalarType type = o.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  const auto made = read_hugging_face(o.model, type);
  warn_if_not_finite(o.model, by_both_names(made));
  const auto experiment = experiment_of(made, o);
  DataDescription description{.shape = made.shape, .ends = made.ends};
  const auto found = take_tokenizer(o.model, made, description);
  auto manifest = manifest_of(experiment, *made.model, data_json({}), at::kCPU);
  manifest["imported"] = {{"from", fs::canonical(o.model).string()},
                          {"files", data_json(made.files)},
                          {"notices", made.notices}};
  write_run(o.out, experiment, description, untrained_checkpoint(*made.model, 0, std::nullopt),
            manifest, {});
  const auto run = fs::canonical(o.out).string();
  const auto parameters = parameter_count(*made.model);
  return print(
      {.object = {{"run", run},
                  {"model", made.kind},
                  {"parameters", parameters},
                  {"dtype", o.dtype},
                  {"tokenizer", found.tokenizer ? Json(found.tokenizer->json()["kind"]) : Json()},
                  {"no_tokenizer", found.tokenizer ? Json() : Json(found.reason)},
                  {"from", fs::canonical(o.model).string()},
                  {"notices", made.notices}},
       .text = fmt::format("{}: {} of {} parameters ({}){}\n{}", run, made.kind, parameters,
                           o.dtype, found.tokenizer ? "" : "; no text, only ids: " + found.reason,
                           lines(made.notices))},
      o.json);
}

const RegisterCommand import_command(
    {.name = "import",
     .summary = "a run of a published model: Hugging Face's layout, or GGUF",
     .example = "headlab import bert-base-uncased/ --out runs/bert\n"
                "  headlab import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2",
     .group = Group::kExchange},
    run_import);

}  // namespace
}  // namespace headlab
