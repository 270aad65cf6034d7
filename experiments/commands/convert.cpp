// `headlab convert RUN`: trained heads become another kind without training; what that costs.
#include <fmt/format.h>

#include <charconv>
#include <string>

#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/commands/run_outcome.h"
#include "experiments/conversion/converted_run.h"
#include "experiments/conversion/latent_model.h"
#include "experiments/pruning/gates.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"
#include "experiments/text/shell_word.h"

namespace headlab {
namespace {

// Of --to mla, as they are written.
struct LatentWords {
  int64_t kv_rank = 0, rope_dim = -1, q_rank = 0, batches = 20;
  std::string freqfold = "1", balance = "1";

  bool operator==(const LatentWords&) const = default;
  void visit(Arguments& a) {
    a.option("--kv-rank", kv_rank, "mla: features of the latent; 0: four times those of a head",
             Arguments::kZeroOrMore);
    a.option("--rope-dim", rope_dim,
             "mla: features of a head that keep rope (default: as many as a head has)",
             Arguments::kZeroOrMore);
    a.option("--freqfold", freqfold,
             "mla: frequencies that are turned together; auto: doubled as long as the loss on the "
             "calibration batches falls");
    a.option("--q-rank", q_rank, "mla: features of a latent of queries; 0: none",
             Arguments::kZeroOrMore);
    a.option(
        "--balance", balance,
        "mla: size of the keys without rope beside the values before they are compressed; off: "
        "as they are");
    a.option("--calibration-batches", batches,
             "mla: batches of training data that decide what is kept", Arguments::kAboveZero);
  }
  LatentSettings settings() const {
    LatentSettings settings;
    settings.kv_rank = kv_rank, settings.q_rank = q_rank;
    if (rope_dim >= 0) settings.rope_dim = rope_dim;
    settings.freqfold = freqfold == "auto" ? 0 : number<int64_t>("--freqfold", freqfold, "auto");
    settings.balance = balance == "off"
                           ? std::nullopt
                           : std::optional(number<double>("--balance", balance, "off"));
    return settings;
  }
  // Above 0, or the word instead.
  template <class Number>
  static Number number(const char* option, const std::string& written, const char* word) {
    Number value = 0;
    const auto* end = written.data() + written.size();
    const auto [stop, error] = std::from_chars(written.data(), end, value);
    if (error != std::errc() || stop != end || !(value > 0))
      throw ConfigError(fmt::format("convert {}: must be a number above 0, or {}; is '{}'", option,
                                    word, written));
    return value;
  }
};

struct ConvertOptions {
  std::string run, to, out;
  int64_t shared_dim = 0, seeds = 5, kv_heads = 0, tune = 0, batches = 0;
  GateStart gates;
  LatentWords latent;
  bool align = false, freeze = false, json = false;
  GivenData given;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.run("run", run);
    a.choice("--to", to, "kind of heads", {"collaborative", "gated", "mha", "mla"});
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
    latent.visit(a);
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
    refuse("needs --to collaborative, gated or mla, or --kv-heads N for fewer key/value heads");
  if (o.to != "mha" && !o.to.empty() && grouped) refuse("--kv-heads: is for --to mha");
  if (o.to == "mha" && !grouped) refuse("--to mha: needs --kv-heads N");
  if (o.to != "mla" && o.latent != LatentWords())
    refuse(
        "--kv-rank, --rope-dim, --freqfold, --q-rank, --balance, --calibration-batches: are for "
        "--to mla");
  if (o.to == "mla") o.latent.settings();
  if (o.shared_dim > 0 && (grouped || gated || o.to == "mla"))
    refuse("--shared-dim: is for --to collaborative");
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

ConvertedModel to_latents(const ConvertOptions& o, const OpenedRun& run, const Compute& compute) {
  if (!run.data)
    throw DataError(o.run + ": has no training data to calibrate by; --data names some");
  const Sample tokens{run.data.get(), Split::kTrain, run.experiment.train.eval_batch,
                      o.latent.batches};
  if (tokens.examples() == 0) throw DataError(o.run + ": its data has no training split");
  return convert_to_mla(run, o.latent.settings(), tokens, compute);
}

std::string target_kind(const ConvertOptions& o) { return o.kv_heads > 0 ? "mha" : o.to; }

// What the result depends on beside the run and its data.
nlohmann::ordered_json asked_json(const ConvertOptions& o, const OpenedRun& run) {
  return tuning_json("convert", weights_file(run.path, run.step).parent_path(),
                     {{"--to", target_kind(o)},
                      {"--shared-dim", o.shared_dim},
                      {"--seeds", o.seeds},
                      {"--kv-heads", o.kv_heads},
                      {"--align", o.align},
                      {"--kv-rank", o.latent.kv_rank},
                      {"--rope-dim", o.latent.rope_dim},
                      {"--freqfold", o.latent.freqfold},
                      {"--q-rank", o.latent.q_rank},
                      {"--balance", o.latent.balance},
                      {"--calibration-batches", o.latent.batches},
                      {"--target-heads", o.gates.heads},
                      {"--penalty", o.gates.penalty},
                      {"--init", o.gates.init},
                      {"--freeze", o.freeze},
                      {"--tune", o.tune},
                      {"--batches", o.batches}});
}

int answer(const ConvertOptions& o, const OpenedRun& opened, const KeptConversion& kept) {
  if (!kept.model) return code_of_early_stop().value_or(kept.exit_code);
  if (kept.status.state != RunState::kFinished) {
    if (kept.status.state == RunState::kStopped) say_what_goes_on(kept.status, shell_word(o.run));
    print_outcome(std::filesystem::canonical(o.out), kept.status, o.json);
    return kept.exit_code;
  }
  Report report{kept.report, {}};
  if (!o.out.empty()) {
    const auto keep = o.gates.heads > 0 ? std::optional(o.gates.heads) : std::nullopt;
    if (o.to == "gated") report.object["gates"] = gate_report(*kept.model, keep);
    report.object["out"] = std::filesystem::canonical(o.out).string();
  }
  report.text = conversion_text(report.object);
  if (report.object.contains("gates")) report.text += gate_text(report.object["gates"]);
  add_code(report.object, opened);
  return print(report, o.json);
}

int run_convert(ConvertOptions& o) {
  check(o);
  if (o.tune > 0) note_signals();
  const auto compute = o.compute.apply();
  if (o.tune == 0) require_free(o.out);
  auto opened = open_named_run(o.run, compute.device);
  o.given.open_if_any(opened, o.tune > 0);
  o.gates.begin = opened.step;
  o.gates.updates = o.tune;
  FurtherTraining further{o.tune, o.freeze, o.to == "gated", o.batches, {}};
  if (o.tune > 0) {
    further.asked = asked_json(o, opened);
    if (const auto kept = go_on_converted(o.out, opened, further, compute))
      return answer(o, opened, *kept);
  }
  torch::manual_seed(static_cast<uint64_t>(opened.experiment.seed));  // of new gates
  auto converted =
      o.to == "mla"
          ? to_latents(o, opened, compute)
          : convert_model(
                opened, [&](const TrainedLayer& layer) { return convert_layer(o, layer); },
                compute.device);
  const auto cost = conversion_cost(o.run, opened, converted, o.batches, compute);
  const auto report = conversion_json(o.run, target_kind(o), opened, converted, cost);
  if (o.out.empty()) return answer(o, opened, {report, converted.model});
  return answer(o, opened,
                keep_converted(o.out, opened, converted, cost, further, compute, report));
}

const RegisterCommand convert_command(
    {.name = "convert",
     .summary =
         "turn trained heads into others without training: collaborative, grouped, gated, mla",
     .example = "headlab convert RUN --to collaborative --shared-dim 64 --out runs/shared64\n"
                "  headlab convert RUN --to gated --target-heads 8 --tune 1000 --out runs/gated8",
     .group = Group::kCut},
    run_convert);

}  // namespace
}  // namespace headlab
