// `headlab convert RUN`: turns trained heads into another kind without training, and says what it
// cost.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/conversion/convert_model.h"
#include "experiments/pruning/gates.h"
#include "experiments/training/evaluate.h"
#include "experiments/training/train.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

struct ConvertOptions {
  std::string run, to, out;
  int64_t shared_dim = 0, seeds = 5, kv_heads = 0, target_heads = 0, tune = 0, batches = 0;
  double penalty = -1, init = 2.5;  // a penalty below 0: that of the kind
  bool align = false, freeze = false, json = false;
  ComputeOptions compute;
};

void check(const ConvertOptions& o) {
  const auto refuse = [](const char* what) { throw ConfigError(fmt::format("convert {}", what)); };
  const bool grouped = o.kv_heads > 0;
  const bool gated = o.to == "gated";
  if (o.to.empty() && !grouped)
    refuse("needs --to collaborative or gated, or --kv-heads N for fewer key/value heads");
  if (o.to != "mha" && !o.to.empty() && grouped) refuse("--kv-heads: is for --to mha");
  if (o.to == "mha" && !grouped) refuse("--to mha: needs --kv-heads N");
  if (o.shared_dim > 0 && (grouped || gated)) refuse("--shared-dim: is for --to collaborative");
  if (o.align && !grouped) refuse("--align: is for --kv-heads");
  if (o.target_heads > 0 && !gated) refuse("--target-heads: is for --to gated");
  if (o.penalty >= 0 && !gated) refuse("--penalty: is for --to gated");
  if (o.freeze && !gated) refuse("--freeze: is for --to gated");
  if (o.target_heads > 0 && o.penalty >= 0)
    refuse("--penalty: does not apply with --target-heads; give one of the two");
  if (o.freeze && o.tune == 0) refuse("--freeze: needs --tune STEPS");
  if (o.tune > 0 && o.out.empty()) refuse("--tune: needs --out DIR for what it trains");
}

// What the gates of a run that goes on from `step` are to do.
ConfigNode gate_options(const ConvertOptions& o, int64_t step) {
  ConfigNode gates;
  gates.set("init", write_number(o.init));
  if (o.penalty >= 0) gates.set("penalty", write_number(o.penalty));
  if (o.target_heads == 0) return gates;
  ConfigNode target;
  target.set("heads", write_integer(o.target_heads));
  target.set("warmup", write_integer(o.tune / 2));
  target.set("begin", write_integer(step));
  gates.set("target", target);
  // At the usual clamp a shut gate still counts as 0.02 of a head: of many heads too few stay open.
  gates.set("clamp", write_number(8));
  return gates;
}

Conversion convert_layer(const ConvertOptions& o, const TrainedLayer& layer, int64_t step) {
  if (o.to == "gated") return to_gated(layer, gate_options(o, step));
  if (o.kv_heads > 0)
    return o.align ? to_grouped_aligned(layer, o.kv_heads) : to_grouped(layer, o.kv_heads);
  const auto full = layer.shape.heads * layer.shape.head_dim;
  if (o.shared_dim > 0 && o.shared_dim < full)
    fmt::print(stderr, "headlab: {}: {} of {} features\n", layer.name, o.shared_dim, full);
  return to_collaborative(layer, o.shared_dim > 0 ? std::optional(o.shared_dim) : std::nullopt,
                          o.seeds);
}

Json report_of(const ConvertOptions& o, const OpenedRun& opened, const ConvertedModel& converted,
               const ConversionErrors& errors) {
  Json report{{"from", std::filesystem::canonical(o.run).string()},
              {"step", opened.step},
              {"to", o.kv_heads > 0 ? "mha" : o.to},
              {"parameters_before", parameter_count(*opened.model)},
              {"parameters_after", parameter_count(*converted.model)},
              {"layers", Json::array()}};
  for (size_t l = 0; l < converted.layers.size(); ++l) {
    const auto& layer = converted.layers[l];
    report["layers"].push_back(
        {{"layer", l}, {"weights_error", layer.error}, {"output_error", errors.outputs[l]}});
    if (!layer.order.empty()) report["layers"].back()["order"] = layer.order;
  }
  report["logits_error"] = errors.logits;
  return report;
}

void print_conversion(const Json& report) {
  fmt::print("layer  weights error  output error\n");
  for (const auto& layer : report["layers"]) {
    fmt::print("{:5}  {:13.3e}  {:12.3e}\n", layer["layer"].get<int64_t>(),
               layer["weights_error"].get<double>(), layer["output_error"].get<double>());
    if (layer.contains("order")) fmt::print("       heads in order {}\n", layer["order"].dump());
  }
  fmt::print("logits error {:.3e}, parameters {} -> {}\n", report["logits_error"].get<double>(),
             report["parameters_before"].get<int64_t>(), report["parameters_after"].get<int64_t>());
  fmt::print("val loss {:.4f} -> {:.4f} nat", report["loss_before"].get<double>(),
             report["loss_after"].get<double>());
  if (report.contains("loss_tuned"))
    fmt::print(" -> {:.4f} after {} updates", report["loss_tuned"].get<double>(),
               report["tuned"].get<int64_t>());
  fmt::print(" over {} tokens\n", report["tokens"].get<int64_t>());
  if (report.contains("gates")) fmt::print("{}", gate_text(report["gates"]));
}

// Goes on with the run that write_run() left: exit code of the training.
int tune(const ConvertOptions& o, ConvertedModel& converted, const DataSource& data,
         const at::Device& device, const Json& manifest) {
  const auto& options = converted.experiment.train;
  if (options.threads) at::set_num_threads(static_cast<int>(*options.threads));
  at::globalContext().setDeterministicAlgorithms(options.deterministic, false);
  const auto located = locate_run(o.out);
  auto directory = RunDirectory::resume(located.run, WriterLock(located.run), manifest);
  try {
    const auto outcome = train(converted.experiment, converted.model, data, device, directory,
                               load_located(located));
    directory.end(outcome.status);
    return outcome.exit_code;
  } catch (const std::exception& e) {
    directory.end({.state = RunState::kFailed, .reason = e.what()});
    throw;
  }
}

int run(const ConvertOptions& o) {
  check(o);
  const auto device = o.compute.apply();
  if (!o.out.empty() && look_at_run(o.out).kind != RunSight::Kind::kAbsent)
    throw RunError(o.out + ": a run is there already; choose another place");
  auto opened = open_run(o.run, device);
  const auto& data = *opened.data;
  const auto split = Split::kValidation;
  if (data.examples(split) == 0)
    throw DataError(o.run + ": its data has no validation split to measure the conversion on");

  torch::manual_seed(static_cast<uint64_t>(opened.experiment.seed));  // of new gates
  auto converted = convert_model(
      opened, [&](const TrainedLayer& layer) { return convert_layer(o, layer, opened.step); },
      device);
  const int64_t batch = opened.experiment.train.eval_batch;
  const auto evaluated = [&](Model& model) {
    return evaluate(model, data, split, batch, o.batches, device);
  };
  const auto before = evaluated(*opened.model), after = evaluated(*converted.model);
  auto report = report_of(
      o, opened, converted,
      compare_models(*opened.model, *converted.model, data, split, batch, o.batches, device));
  report["loss_before"] = before.loss, report["loss_after"] = after.loss;
  report["tokens"] = after.tokens;

  int code = kDone;
  if (!o.out.empty()) {
    auto& options = converted.experiment.train;
    if (o.tune > 0) {  // further along the schedule that the run had
      options.decay_steps = options.decays_over();
      options.steps = opened.step + o.tune;
      options.gates_only = o.freeze;
      if (o.to == "gated") options.early_stop.patience = 0;  // fewer heads may cost loss
    }
    auto manifest = manifest_of(converted.experiment, data, device);
    manifest["converted"] = report;
    write_run(o.out, converted.experiment,
              untrained_checkpoint(*converted.model, opened.step, after.loss), manifest,
              {{"val/loss", after.loss}, {"val/accuracy", after.accuracy}});
    if (o.tune > 0) {
      code = tune(o, converted, data, device, manifest);
      report["tuned"] = o.tune;
      report["loss_tuned"] = evaluated(*converted.model).loss;
    }
    if (o.to == "gated")
      report["gates"] = gate_report(
          *converted.model, o.target_heads > 0 ? std::optional(o.target_heads) : std::nullopt);
    report["out"] = std::filesystem::canonical(o.out).string();
  }
  if (o.json)
    fmt::print("{}\n", report.dump());
  else
    print_conversion(report);
  return code;
}

const RegisterCommand convert_command({
    .name = "convert",
    .summary =
        "turn trained heads into another kind without training: collaborative, grouped, gated",
    .example = "headlab convert runs/char_mha/0123abcd-s1337 --to collaborative --shared-dim 64 "
               "--out runs/shared64\n"
               "  headlab convert runs/char_mha/0123abcd-s1337 --kv-heads 1 --align --tune 100 "
               "--out runs/mqa\n"
               "  headlab convert runs/char_mha/0123abcd-s1337 --to gated --target-heads 8 "
               "--tune 1000 --out runs/gated8",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<ConvertOptions>();
          a.option("run", o->run, "run or checkpoint directory", Arguments::kRequired);
          a.choice("--to", o->to, "kind of heads", {"collaborative", "gated", "mha"});
          a.option("--shared-dim", o->shared_dim,
                   "query and key features that all heads share (default: heads * head_dim, an "
                   "exact copy; fewer: the best low-rank decomposition)",
                   Arguments::kAboveZero);
          a.option("--seeds", o->seeds,
                   "random starts of the decomposition, beside the block start",
                   Arguments::kZeroOrMore);
          a.option("--kv-heads", o->kv_heads,
                   "key/value heads that are left: each is the mean of a group",
                   Arguments::kAboveZero);
          a.flag(
              "--align", o->align,
              "before --kv-heads merges them, bring heads with similar keys and values into one "
              "group and turn them towards each other; the heads' order changes, the function of "
              "the layer does not");
          a.option("--target-heads", o->target_heads,
                   "gated: heads of the whole model that --tune leaves open; the target rises over "
                   "its first half",
                   Arguments::kAboveZero);
          a.option("--penalty", o->penalty, "gated: loss of an open head instead (default: 1)",
                   Arguments::kZeroOrMore);
          a.option("--init", o->init,
                   "gated: log_alpha of every head before --tune; above 2.4 the converted model is "
                   "the old one");
          a.flag("--freeze", o->freeze, "gated: --tune trains the gates alone");
          a.option("--out", o->out, "new run directory for the converted model");
          a.option("--tune", o->tune,
                   "go on training in --out for N updates, with the run's data and settings, where "
                   "its schedule stood",
                   Arguments::kAboveZero);
          a.option("--batches", o->batches, "validation batches to measure on; 0: the whole split",
                   Arguments::kZeroOrMore);
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
