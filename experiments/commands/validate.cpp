// `headlab validate CONFIG`: checks a config and its data, and says what a run would cost.
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/run_outcome.h"
#include "experiments/data/test_part.h"
#include "experiments/inference/generate.h"
#include "experiments/models/stack_options.h"
#include "experiments/models/trained_parameters.h"
#include "experiments/runs/initial_weights.h"
#include "experiments/runs/open_run.h"
#include "experiments/system/memory.h"
#include "experiments/system/own_files.h"
#include "experiments/text/number_text.h"
#include "experiments/training/training_log.h"

namespace headlab {
namespace {

struct ValidateOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool json = false;

  void visit(Arguments& a) {
    a.option("config", file, "YAML file, or the name of one of headlab's own, char_mha",
             Arguments::kRequired);
    a.option("overrides", overrides, "a.b=value ...");
    a.flag("--json", json, "print one JSON object");
  }
};

using Json = nlohmann::ordered_json;

// Estimates; what they count is in the text beside them.
Json sizes_of(const Experiment& experiment, Model& model, const DataSource& data) {
  const auto& train = experiment.train;
  const auto bytes = static_cast<int64_t>(parameter_bytes(model));
  const int64_t tokens = train.batch / train.accumulate * model.context();
  // A block keeps about 16 widths a token for the backward pass, the head two rows of logits.
  int64_t widths = 2 * data.vocabulary();
  for (const auto& stack : experiment.model.as<ModelOptions>().stacks())
    widths += 16 * stack->layers * stack->d_model;
  const int64_t activations = tokens * 4 * widths;
  const int64_t kept = train.checkpoint.keep_last + (train.checkpoint.keep_best ? 1 : 0);
  Json sizes;
  sizes["parameters"] = parameter_count(model);
  sizes["flops_per_token"] = model.flops_per_token();
  if (const auto cache = cache_bytes_per_token(model, experiment.model.as<ModelOptions>()))
    sizes["cache_bytes_per_token"] = *cache;
  sizes["training_memory_bytes"] = 4 * bytes + activations;
  sizes["attention_bytes"] = total_map_bytes(experiment, model, data);
  sizes["statistics_bytes"] = total_statistics_bytes(experiment, model, data);
  sizes["checkpoint_bytes"] = 3 * bytes * kept;
  sizes["vocabulary"] = data.vocabulary();
  if (const auto classes = data.shape().classes; classes > 0) sizes["classes"] = classes;
  sizes["train_examples"] = data.examples(Split::kTrain);
  sizes["validation_examples"] = data.examples(Split::kValidation);
  if (asks_for_test(experiment.data)) sizes["test_examples"] = data.examples(Split::kTest);
  return sizes;
}

std::string text_of(const std::string& file, const Json& s) {
  const auto bytes = [&](const char* name) { return readable_bytes(s[name].get<double>()); };
  const auto count = [&](const char* name) { return s[name].get<int64_t>(); };
  return fmt::format(
      "{}: valid\n"
      "parameters        {}\n"
      "FLOPs a token     {} (forward, full context)\n"
      "{}training memory   about {} (weights, gradients, moments, activations)\n"
      "attention maps    {} in log.h5 before compression\n"
      "head statistics   {} in log.h5\n"
      "checkpoints       {}\n"
      "data              {}, {} training and {} validation examples{}\n",
      file, count("parameters"), number_text(s["flops_per_token"].get<double>(), "{:.4g}"),
      s.contains("cache_bytes_per_token")
          ? fmt::format("cache a token     {} (decoding, full context)\n",
                        bytes("cache_bytes_per_token"))
          : "",
      bytes("training_memory_bytes"), bytes("attention_bytes"), bytes("statistics_bytes"),
      bytes("checkpoint_bytes"),
      s.contains("classes") ? fmt::format("{} classes", count("classes"))
                            : fmt::format("{} tokens known", count("vocabulary")),
      count("train_examples"), count("validation_examples"),
      s.contains("test_examples") ? fmt::format(", {} of a test part", count("test_examples"))
                                  : "");
}

int run_validate(const ValidateOptions& o) {
  Experiment experiment;
  const auto node = load_experiment(named_config(o.file), o.overrides);
  read_config(experiment, node);
  resolve_init(experiment);
  const auto data = open_training_data(experiment);
  const auto model = build_trained_model(experiment, data->shape(), at::kCPU);
  say_unreached_rate(experiment, *data);
  const auto sizes = sizes_of(experiment, *model, *data);
  const int64_t maps = sizes["attention_bytes"].get<int64_t>();
  if (maps > experiment.log.attention.max_bytes) {
    Problems problems;
    const auto* log = node.find("log");
    problems.add(
        log ? log->place : node.place, "log.attention",
        fmt::format("the maps would take {}, over max_bytes {}; log them less often, of "
                    "fewer probes or positions, or raise max_bytes",
                    readable_bytes(static_cast<double>(maps)),
                    readable_bytes(static_cast<double>(experiment.log.attention.max_bytes))));
    problems.raise();
  }
  return print({.object = sizes, .text = text_of(o.file, sizes)}, o.json);
}

const RegisterCommand validate_command(
    {.name = "validate",
     .summary = "check a config and its data; parameters, FLOPs and sizes of a run",
     .example = "headlab validate configs/char_mha.yaml --json",
     .group = Group::kTrain},
    run_validate);

}  // namespace
}  // namespace headlab
