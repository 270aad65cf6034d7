// `headlab convert RUN`: trained heads become another kind without training; what that costs.
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/commands/report.h"
#include "experiments/conversion/converted_run.h"
#include "experiments/pruning/gates.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

struct ConvertOptions {
  std::string run, to, out;
  int64_t shared_dim = 0, seeds = 5, kv_heads = 0, tune = 0, batches = 0;
  GateStart gates;
  bool align = false, freeze = false, json = false;
  GivenData given;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.run("run", run);
    a.choice("--to", to, "kind of heads", {"collaborative", "gated", "mha"});
    a.option("--shared-dim", shared_dim,
             "query and key features that heads share; fewer than all: the best of low rank",
             Arguments::kAboveZero);
    a.option("--seeds", seeds, "random starts of the decomposition, beside the block start",
             Arguments::kZeroOrMore);
    a.option("--kv-heads", kv_heads, "key/value heads that are left: each is the mean of a group",
             Arguments::kAboveZero);
    a.flag("--align", align,
           "before --kv-heads merges them, bring heads with similar keys and values into one group "
           "and turn them towards each other; their order changes, the layer's function does not");
    a.option("--target-heads", gates.heads,
             "gated: heads of the model that --tune leaves open; reached over its first half",
             Arguments::kAboveZero);
    a.option("--penalty", gates.penalty, "gated: loss of an open head instead (default: 1)",
             Arguments::kZeroOrMore);
    a.option("--init", gates.init,
             "gated: log_alpha of every head before --tune; above 2.4 the model is the old one");
    a.flag("--freeze", freeze, "gated: --tune trains the gates alone");
    a.option("--out", out, "new run directory for the converted model");
    a.option("--tune", tune,
             "train on in --out for N updates, by the run's settings, where its schedule stood",
             Arguments::kAboveZero);
    a.option("--batches", batches, "validation batches to measure on; 0: the whole split",
             Arguments::kZeroOrMore);
    given.visit(a);
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

void check(const ConvertOptions& o) {
  const auto refuse = [](const char* what) { throw ConfigError(fmt::format("convert {}", what)); };
  const bool grouped = o.kv_heads > 0, gated = o.to == "gated";
  if (o.to.empty() && !grouped)
    refuse("needs --to collaborative or gated, or --kv-heads N for fewer key/value heads");
  if (o.to != "mha" && !o.to.empty() && grouped) refuse("--kv-heads: is for --to mha");
  if (o.to == "mha" && !grouped) refuse("--to mha: needs --kv-heads N");
  if (o.shared_dim > 0 && (grouped || gated)) refuse("--shared-dim: is for --to collaborative");
  if (o.align && !grouped) refuse("--align: is for --kv-heads");
  if (o.gates.heads > 0 && !gated) refuse("--target-heads: is for --to gated");
  if (o.gates.penalty >= 0 && !gated) refuse("--penalty: is for --to gated");
  if (o.freeze && !gated) refuse("--freeze: is for --to gated");
  if (o.gates.heads > 0 && o.gates.penalty >= 0)
    refuse("--penalty: does not apply with --target-heads; give one of the two");
  if (o.freeze && o.tune == 0) refuse("--freeze: needs --tune STEPS");
  if (o.tune > 0 && o.out.empty()) refuse("--tune: needs --out DIR for what it trains");
}

Conversion convert_layer(const ConvertOptions& o, const TrainedLayer& layer) {
  if (o.to == "gated") return to_gated(layer, gate_options(o.gates));
  if (o.kv_heads > 0)
    return o.align ? to_grouped_aligned(layer, o.kv_heads) : to_grouped(layer, o.kv_heads);
  const auto asked = o.shared_dim > 0 ? std::optional(o.shared_dim) : std::nullopt;
  const auto full = layer.shape.heads * layer.shape.head_dim;
  if (asked && *asked < full) tell("{}: {} of {} features", layer.name, *asked, full);
  return to_collaborative(layer, asked, o.seeds);
}

int run_convert(ConvertOptions& o) {
  check(o);
  const auto compute = o.compute.apply();
  require_free(o.out);
  auto opened = open_named_run(o.run, compute.device);
  o.given.open_if_any(opened, o.tune > 0);
  o.gates.begin = opened.step, o.gates.updates = o.tune;
  torch::manual_seed(static_cast<uint64_t>(opened.experiment.seed));  // of new gates
  auto converted = convert_model(
      opened, [&](const TrainedLayer& layer) { return convert_layer(o, layer); }, compute.device);
  const auto cost = conversion_cost(o.run, opened, converted, o.batches, compute);
  Report report{conversion_json(o.run, o.kv_heads > 0 ? "mha" : o.to, opened, converted, cost), {}};
  int code = kDone;
  if (!o.out.empty()) {
    code = keep_converted(o.out, opened, converted, cost, {o.tune, o.freeze, o.to == "gated"},
                          compute, report.object);
    const auto keep = o.gates.heads > 0 ? std::optional(o.gates.heads) : std::nullopt;
    if (o.to == "gated") report.object["gates"] = gate_report(*converted.model, keep);
    report.object["out"] = std::filesystem::canonical(o.out).string();
  }
  report.text = conversion_text(report.object);
  if (report.object.contains("gates")) report.text += gate_text(report.object["gates"]);
  add_code(report.object, opened);
  print(report, o.json);
  return code;
}

const RegisterCommand convert_command(
    {.name = "convert",
     .summary = "turn trained heads into others without training: collaborative, grouped, gated",
     .example = "headlab convert RUN --to collaborative --shared-dim 64 --out runs/shared64\n"
                "  headlab convert RUN --to gated --target-heads 8 --tune 1000 --out runs/gated8",
     .group = Group::kCut},
    run_convert);

}  // namespace
}  // namespace headlab
