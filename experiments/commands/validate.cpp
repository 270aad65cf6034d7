// `headlab validate CONFIG`: checks a config and its data, and says what a run would cost.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/training_log.h"

namespace headlab {
namespace {

struct ValidateOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool json = false;
};

using Json = nlohmann::ordered_json;

// Estimates; what they count is in the text beside them.
Json sizes_of(const Experiment& experiment, Model& model, const DataSource& data) {
  const auto& options = experiment.model.as<ModelOptions>();
  const auto& train = experiment.train;
  int64_t bytes = 0;
  for (const auto& p : model.parameters()) bytes += p.numel() * p.element_size();
  const int64_t tokens = train.batch / train.accumulate * data.context();
  // A block keeps about 16 widths a token for the backward pass, the head two rows of logits.
  const int64_t activations =
      tokens * 4 * (16 * options.layers * options.d_model + 2 * data.vocabulary());
  const int64_t kept = train.checkpoint.keep_last + (train.checkpoint.keep_best ? 1 : 0);
  Json sizes;
  sizes["parameters"] = parameter_count(model);
  sizes["flops_per_token"] = model.flops_per_token();
  sizes["training_memory_bytes"] = 4 * bytes + activations;
  sizes["attention_bytes"] = total_map_bytes(experiment, model, data);
  sizes["statistics_bytes"] = total_statistics_bytes(experiment, model, data);
  sizes["checkpoint_bytes"] = 3 * bytes * kept;
  sizes["vocabulary"] = data.vocabulary();
  sizes["train_examples"] = data.examples(Split::kTrain);
  sizes["validation_examples"] = data.examples(Split::kValidation);
  return sizes;
}

std::string readable(double bytes) {
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (bytes < 1024) return fmt::format("{:.4g} {}", bytes, unit);
    bytes /= 1024;
  }
  return fmt::format("{:.4g} TiB", bytes);
}

void print_text(const std::string& file, const Json& s) {
  fmt::print("{}: valid\n", file);
  fmt::print("parameters        {}\n", s["parameters"].get<int64_t>());
  fmt::print("FLOPs a token     {:.4g} (forward, full context)\n",
             s["flops_per_token"].get<double>());
  fmt::print("training memory   about {} (weights, gradients, moments, activations)\n",
             readable(s["training_memory_bytes"].get<double>()));
  fmt::print("attention maps    {} in log.h5 before compression\n",
             readable(s["attention_bytes"].get<double>()));
  fmt::print("head statistics   {} in log.h5\n", readable(s["statistics_bytes"].get<double>()));
  fmt::print("checkpoints       {}\n", readable(s["checkpoint_bytes"].get<double>()));
  fmt::print("data              {} tokens known, {} training and {} validation examples\n",
             s["vocabulary"].get<int64_t>(), s["train_examples"].get<int64_t>(),
             s["validation_examples"].get<int64_t>());
}

int run(const ValidateOptions& o) {
  Experiment experiment;
  const auto node = load_config(o.file, o.overrides);
  read_config(experiment, node);
  const auto data = open_data(experiment.data);
  const auto model = build_model(experiment, data->shape(), at::kCPU);
  const auto sizes = sizes_of(experiment, *model, *data);
  const int64_t maps = sizes["attention_bytes"].get<int64_t>();
  if (maps > experiment.log.attention.max_bytes) {
    Problems problems;
    const auto* log = node.find("log");
    problems.add(log ? log->place : node.place, "log.attention",
                 fmt::format("the maps would take {}, over max_bytes {}; log them less often, of "
                             "fewer probes or positions, or raise max_bytes",
                             readable(static_cast<double>(maps)),
                             readable(static_cast<double>(experiment.log.attention.max_bytes))));
    problems.raise();
  }
  if (o.json)
    fmt::print("{}\n", sizes.dump());
  else
    print_text(o.file, sizes);
  return kDone;
}

const RegisterCommand validate_command({
    .name = "validate",
    .summary = "check a config and its data; parameters, FLOPs and sizes of a run",
    .example = "headlab validate configs/char_mha.yaml --json",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<ValidateOptions>();
          a.option("config", o->file, "YAML file", Arguments::kRequired);
          a.option("overrides", o->overrides, "a.b=value ...");
          a.flag("--json", o->json, "print one JSON object");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
