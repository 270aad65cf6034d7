// `headlab convert RUN`: turns trained heads into another kind without training, and says what it
// cost.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/convert_model.h"
#include "experiments/evaluate.h"
#include "experiments/train.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string run, to, out;
  int64_t shared_dim = 0, seeds = 5, kv_heads = 0, tune = 0, batches = 0;
  bool align = false, json = false;
  ComputeOptions compute;
};

void check(const Options& o) {
  const auto refuse = [](const char* what) { throw ConfigError(fmt::format("convert {}", what)); };
  const bool grouped = o.kv_heads > 0;
  if (o.to.empty() && !grouped)
    refuse("needs --to collaborative, or --kv-heads N for fewer key/value heads");
  if (o.to == "collaborative" && grouped) refuse("--kv-heads: is for --to mha");
  if (o.to == "mha" && !grouped) refuse("--to mha: needs --kv-heads N");
  if (o.shared_dim > 0 && grouped) refuse("--shared-dim: is for --to collaborative");
  if (o.align && !grouped) refuse("--align: is for --kv-heads");
  if (o.tune > 0 && o.out.empty()) refuse("--tune: needs --out DIR for what it trains");
}

Conversion convert_layer(const Options& o, const TrainedLayer& layer) {
  if (o.kv_heads > 0)
    return o.align ? to_grouped_aligned(layer, o.kv_heads) : to_grouped(layer, o.kv_heads);
  const auto full = layer.shape.heads * layer.shape.head_dim;
  if (o.shared_dim > 0 && o.shared_dim < full)
    fmt::print(stderr, "headlab: {}: {} of {} features\n", layer.name, o.shared_dim, full);
  return to_collaborative(layer, o.shared_dim > 0 ? std::optional(o.shared_dim) : std::nullopt,
                          o.seeds);
}

Json report_of(const Options& o, const OpenedRun& opened, const ConvertedModel& converted,
               const ConversionErrors& errors) {
  Json report{{"from", std::filesystem::canonical(o.run).string()},
              {"step", opened.step},
              {"to", o.kv_heads > 0 ? "mha" : "collaborative"},
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

void print_report(const Json& report) {
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
}

// Goes on with the run that write_run() left: exit code of the training.
int tune(const Options& o, ConvertedModel& converted, const DataSource& data,
         const at::Device& device, const Json& manifest) {
  const auto& options = converted.experiment.train;
  if (options.threads) at::set_num_threads(static_cast<int>(*options.threads));
  at::globalContext().setDeterministicAlgorithms(options.deterministic, false);
  const auto located = locate_run(o.out);
  auto directory = RunDirectory::resume(located.run, manifest);
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

int run(const Options& o) {
  check(o);
  const auto device = o.compute.apply();
  if (!o.out.empty() && look_at_run(o.out).kind != RunSight::Kind::kAbsent)
    throw RunError(o.out + ": a run is there already; choose another place");
  auto opened = open_run(o.run, device);
  const auto& data = *opened.data;
  const auto split = Split::kValidation;
  if (data.examples(split) == 0)
    throw DataError(o.run + ": its data has no validation split to measure the conversion on");

  auto converted = convert_model(
      opened, [&](const TrainedLayer& layer) { return convert_layer(o, layer); }, device);
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
    }
    auto manifest = manifest_of(converted.experiment, data, device);
    manifest["converted"] = report;
    write_run(o.out, converted.experiment,
              fresh_checkpoint(converted.experiment, converted.model, opened.step, after.loss),
              manifest, {{"val/loss", after.loss}, {"val/accuracy", after.accuracy}});
    if (o.tune > 0) {
      code = tune(o, converted, data, device, manifest);
      report["tuned"] = o.tune;
      report["loss_tuned"] = evaluated(*converted.model).loss;
    }
    report["out"] = std::filesystem::canonical(o.out).string();
  }
  if (o.json)
    fmt::print("{}\n", report.dump());
  else
    print_report(report);
  return code;
}

const RegisterCommand registered({
    .name = "convert",
    .summary = "turn trained heads into another kind without training: collaborative, grouped",
    .example = "headlab convert runs/char_mha/0123abcd-s1337 --to collaborative --shared-dim 64 "
               "--out runs/shared64\n"
               "  headlab convert runs/char_mha/0123abcd-s1337 --kv-heads 1 --align --tune 100 "
               "--out runs/mqa",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<Options>();
          a.option("run", o->run, "run or checkpoint directory", Arguments::kRequired);
          a.choice("--to", o->to, "kind of heads", {"collaborative", "mha"});
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
