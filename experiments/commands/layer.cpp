// `headlab layer CASE.safetensors`: runs one attention layer and judges its numbers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/torch.h"
#include "experiments/cases/layer_case.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

struct LayerOptions {
  std::string file, out;
  ComputeOptions compute;
  bool json = false, statistics = false, forward_only = false;
  int time = 0;

  void visit(Arguments& a) {
    a.option("case", file, "safetensors file with the layer", Arguments::kRequired);
    a.option("--out", out, "write everything computed to this safetensors file");
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
    a.flag("--stats", statistics, "compute the head statistics (stat.* in --out)");
    a.option("--time", time, "time N repetitions", Arguments::kAboveZero);
    a.flag("--forward-only", forward_only, "no gradients");
  }
};

// Milliseconds of `repeats` runs, after two warm-ups.
nlohmann::ordered_json timing(LayerCase& layer, bool backward, const LayerOptions& options,
                              Backend backend) {
  std::vector<double> times;
  for (int n = -2; n < options.time; ++n) {
    const auto start = std::chrono::steady_clock::now();
    layer.step(backward, backend);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (n >= 0) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return {{"min", times.front()}, {"median", times[times.size() / 2]}};
}

std::string statistic_text(const std::string& name, const Tensor& values) {  // [H]
  auto text = fmt::format("{:<26}", name);
  for (int64_t h = 0; h < values.size(0); ++h)
    text += fmt::format("{:>11.5g}", values[h].item<double>());
  return text + "\n";
}

std::string text_of(const nlohmann::ordered_json& object, const std::vector<Verdict>& verdicts,
                    const NamedTensors& computed) {
  auto text =
      verdicts.empty() ? "no expected tensors: nothing to judge\n" : verdicts_text(verdicts);
  for (const auto& [name, tensor] : computed)
    if (name.starts_with("stat.") && tensor.dim() == 1) text += statistic_text(name, tensor);
  for (const char* key : {"forward_ms", "forward_backward_ms"})
    if (object.contains(key))
      text += fmt::format("{}  min {:.3f}  median {:.3f}\n", key, object[key]["min"].get<double>(),
                          object[key]["median"].get<double>());
  return text;
}

int run_layer(const LayerOptions& options) {
  const auto compute = options.compute.apply();
  std::optional<OutputFile> out;
  if (!options.out.empty())
    out.emplace(options.out, std::vector<std::filesystem::path>{options.file});
  LayerCase layer(options.file, compute.device);
  LayerCase::Wanted wanted;
  wanted.gradients = !options.forward_only;
  wanted.attention = !options.out.empty();
  for (const char* observed : {"out.attention", "out.blocks", "out.keys"})
    wanted.attention |= layer.expected().contains(observed);
  wanted.statistics = options.statistics;
  const auto computed = layer.compute(wanted, compute.backend);
  auto expected = layer.expected();
  if (options.forward_only)
    std::erase_if(expected, [](const auto& e) { return e.first.starts_with("grad."); });
  const auto verdicts = judge(computed, expected, layer.tolerance());

  auto object = verdicts_json(options.file, verdicts);
  if (options.time > 0) {
    object["forward_ms"] = timing(layer, false, options, compute.backend);
    if (layer.has_cotangent() && !options.forward_only)
      object["forward_backward_ms"] = timing(layer, true, options, compute.backend);
  }
  if (out)
    out->write([&](const std::filesystem::path& file) {
      write_tensors(file, computed, {{"headlab_case", "1"}, {"config", layer.config()}});
    });
  print({.object = object, .text = text_of(object, verdicts, computed)}, options.json);
  return all_pass(verdicts) ? kDone : kCheckFailed;
}

const RegisterCommand layer_command(
    {.name = "layer",
     .summary = "run one attention layer from a case file and judge its numbers",
     .example = "headlab layer tests/golden/mha/llama_gqa.safetensors",
     .group = Group::kExtend},
    run_layer);

}  // namespace
}  // namespace headlab
