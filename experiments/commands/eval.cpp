// `headlab eval RUN`: loss and metrics of a checkpoint over a whole split, or over a given text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/given_data.h"
#include "experiments/commands/on_ranks.h"
#include "experiments/commands/options.h"
#include "experiments/data/references.h"
#include "experiments/inference/evaluate.h"
#include "experiments/inference/translated_text.h"
#include "experiments/runs/open_run.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

struct EvalOptions {
  std::string run;
  std::optional<std::string> split;
  int64_t batch = 64;
  int64_t beam = 0;
  double length_power = 1;
  GivenData given;
  ComputeOptions compute;
  int comm_timeout = kCommTimeout;
  bool json = false;

  void visit(Arguments& a) {
    a.run("run", run);
    given.visit(a);
    a.option("--split", split, "train, val or test (default: val)");
    a.option("--batch", batch, "examples at a time", Arguments::kAboveZero);
    a.option("--beam", beam, "translate the split too and say its BLEU; 1: greedily, 0: do not",
             Arguments::kZeroOrMore);
    a.option("--length-power", length_power, "translations are ranked by ln p / tokens^power",
             Arguments::kZeroOrMore);
    compute.visit(a);
    a.option("--comm-timeout", comm_timeout, kCommTimeoutHelp, Arguments::kAboveZero);
    a.flag("--json", json, "print one JSON object");
  }
};

// Adds the BLEU of the split to the object; its text.
std::string add_bleu(nlohmann::ordered_json& object, OpenedRun& run, Split split,
                     const EvalOptions& o, const Compute& compute) {
  if (!translates(run.data_description.shape))
    throw ConfigError("--beam: this model translates nothing");
  if (!run.data_description.tokenizer)
    throw ConfigError("--beam: the model has no tokenizer, so that its translations are no texts");
  BeamOptions beam{.width = o.beam, .power = o.length_power};
  const auto& options = run.experiment.model.as<ModelOptions>();
  beam.cache = why_no_cache(*run.model, options, "eval").empty();
  const auto bleu = bleu_of(*run.model, *run.data, split, o.batch, beam, compute);
  object["bleu"] = bleu.score();
  object["beam"] = beam.width;
  object["length_power"] = beam.power;
  object["brevity_penalty"] = bleu.brevity_penalty();
  object["hypothesis_tokens"] = bleu.hypothesis_tokens;
  object["reference_tokens"] = bleu.reference_tokens;
  return fmt::format(
      "BLEU {:.2f} ({})", bleu.score(),
      beam.width == 1 ? "greedy" : fmt::format("beam {}, power {}", beam.width, beam.power));
}

// "  chance: loss 4.1744 nat, accuracy 0.0154 (a guess: any of 65 tokens)", a line each.
std::string references_text(const References& references) {
  std::string text;
  for (const auto& one : references.all) {
    std::vector<std::string> values;
    for (const auto& value : one.values) values.push_back(to_text(value));
    text += fmt::format("  {}: {} ({})\n", one.name, fmt::join(values, ", "), one.how);
  }
  return text;
}

constexpr const char* kNoReferences =
    "  chance and counts: left out, as the data are too large to count in a moment\n";

int evaluate_run(const EvalOptions& o, const Compute& compute) {
  auto opened = open_named_run(o.run, compute.device);
  if (!opened.model->predicts())
    throw ConfigError(
        "eval: this model embeds texts, which can be neither right nor wrong; prune, ablate and "
        "convert measure how far embeddings move");
  o.given.open(opened);
  const auto split = split_of(opened, o.run, o.split);
  const auto e = evaluate(*opened.model, {opened.data.get(), split, o.batch}, compute);
  if (e.tokens == 0) throw DataError(o.run + ": no token of these examples is scored");
  auto object = examples_json(opened, split);
  object["step"] = opened.step;
  std::vector<std::string> texts;
  for (const auto& mean : e.means) {
    object[mean.name] = mean.value;
    texts.push_back(to_text(mean));
  }
  for (const auto& metric : derived_of(e, opened.data->task())) {
    object[metric.name] = metric.value;
    texts.insert(texts.begin() + 1, to_text(metric));
  }
  if (o.beam > 0) texts.push_back(add_bleu(object, opened, split, o, compute));
  object.update(measured_json(e));
  if (!compute.comm->first()) return e.is_finite() ? kDone : kDiverged;
  const bool counts = references_are_quick(*opened.data, split);
  const auto references = counts ? references_of(*opened.data, split) : References();
  object["references"] = references_json(references);
  const auto of = o.given.data ? " of " + *o.given.data : o.given.text ? " text" : "";
  const int code = print({.object = object,
                          .text = fmt::format("{}{} {}; {}{} (step {})\n", split_name(split), of,
                                              fmt::join(texts, ", "), measured_text(e),
                                              examples_text(e), opened.step) +
                                  (counts ? references_text(references) : kNoReferences)},
                         o.json);
  if (e.is_finite()) return code;
  tell("eval: the {} is not finite", e.means.front().name);
  return kDiverged;
}

int run_eval(const EvalOptions& o) {
  if (o.beam == 0 && o.length_power != 1)
    throw ConfigError("--length-power: ranks translations; --beam N asks for some");
  const auto launch = launched();
  auto compute = o.compute.apply(launch);
  const CommSettings settings{.timeout = std::chrono::seconds(o.comm_timeout),
                              .device = compute.device};
  return on_ranks(launch, settings, [&](const Ranks& ranks) {
    compute.comm = &ranks.comm;
    return evaluate_run(o, compute);
  });
}

const RegisterCommand eval_command(
    {.name = "eval",
     .summary = "loss and metrics of a checkpoint over a whole split or a given text",
     .example = "headlab eval runs/char_mha/0123abcd-s1337 --json\n"
                "  headlab eval runs/char_mha/0123abcd-s1337 --data other.txt\n"
                "  headlab eval runs/multi30k_mha/0123abcd-s1337 --split test --beam 5",
     .group = Group::kLook},
    run_eval);

}  // namespace
}  // namespace headlab
