// `headlab layer CASE.safetensors`: runs one attention layer and judges its numbers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/torch.h"
#include "experiments/cases/layer_case.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"

namespace headlab {
namespace {

struct LayerOptions {
  std::string file, out;
  ComputeOptions compute;
  bool json = false, statistics = false, forward_only = false;
  int time = 0;
};

// Milliseconds of `repeats` runs, after two warm-ups.
nlohmann::ordered_json timing(LayerCase& layer, bool backward, const LayerOptions& options) {
  std::vector<double> times;
  for (int n = -2; n < options.time; ++n) {
    const auto start = std::chrono::steady_clock::now();
    layer.step(backward, options.compute.path());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (n >= 0) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return {{"min", times.front()}, {"median", times[times.size() / 2]}};
}

void print_statistic(const std::string& name, const Tensor& values) {  // [H]
  fmt::print("{:<26}", name);
  for (int64_t h = 0; h < values.size(0); ++h) fmt::print("{:>11.5g}", values[h].item<double>());
  fmt::print("\n");
}

int run(const LayerOptions& options) {
  LayerCase layer(options.file, options.compute.apply());
  LayerCase::Wanted wanted;
  wanted.gradients = !options.forward_only;
  wanted.attention = layer.expected().count("out.attention") || !options.out.empty();
  wanted.statistics = options.statistics;
  const auto computed = layer.compute(wanted, options.compute.path());
  auto expected = layer.expected();
  if (options.forward_only)
    std::erase_if(expected, [](const auto& e) { return e.first.starts_with("grad."); });
  const auto verdicts = judge(computed, expected, layer.tolerance());

  auto object = verdicts_json(options.file, verdicts);
  if (options.time > 0) {
    object["forward_ms"] = timing(layer, false, options);
    if (layer.has_cotangent() && !options.forward_only)
      object["forward_backward_ms"] = timing(layer, true, options);
  }
  if (!options.out.empty())
    write_tensors(options.out, computed, {{"headlab_case", "1"}, {"config", layer.config()}});
  if (options.json) {
    fmt::print("{}\n", object.dump());
  } else {
    for (const auto& verdict : verdicts) fmt::print("{}\n", verdict_line(verdict));
    if (verdicts.empty()) fmt::print("no expected tensors: nothing to judge\n");
    for (const auto& [name, tensor] : computed)
      if (name.starts_with("stat.") && tensor.dim() == 1) print_statistic(name, tensor);
    for (const char* key : {"forward_ms", "forward_backward_ms"})
      if (object.contains(key))
        fmt::print("{}  min {:.3f}  median {:.3f}\n", key, object[key]["min"].get<double>(),
                   object[key]["median"].get<double>());
  }
  return all_pass(verdicts) ? kDone : kCheckFailed;
}

const RegisterCommand layer_command({
    .name = "layer",
    .summary = "run one attention layer from a case file and judge its numbers",
    .example = "headlab layer tests/golden/mha/llama_gqa.safetensors",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<LayerOptions>();
          a.option("case", o->file, "safetensors file with the layer", Arguments::kRequired);
          a.option("--out", o->out, "write everything computed to this safetensors file");
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object");
          a.flag("--stats", o->statistics, "compute the head statistics (stat.* in --out)");
          a.option("--time", o->time, "time N repetitions", Arguments::kAboveZero);
          a.flag("--forward-only", o->forward_only, "no gradients");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
