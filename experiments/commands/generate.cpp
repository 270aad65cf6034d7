// `headlab generate RUN --prompt TEXT`: samples from a language model, or with --input FILE writes
// what a model makes of each line of it; the text alone on stdout.
#include "experiments/inference/generate.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/inference/translated_text.h"
#include "experiments/runs/open_run.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

struct GenerateOptions {
  std::string run;
  std::optional<std::string> prompt, input;
  SamplingOptions sampling;
  BeamOptions beam;
  ComputeOptions compute;
  bool no_cache = false, no_stop = false;

  void visit(Arguments& a) {
    a.run("run", run);
    a.option("--prompt", prompt, "text to continue (default: a new line)");
    a.option("--input", input, "a file whose lines a translation model translates");
    a.option("--beam", beam.width, "translations kept at each token; 1: greedy",
             Arguments::kAboveZero);
    a.option("--length-power", beam.power, "translations are ranked by ln p / tokens^power",
             Arguments::kZeroOrMore);
    a.option("--tokens", sampling.tokens, "tokens to add", Arguments::kZeroOrMore);
    a.option("--temperature", sampling.temperature, "0: the likeliest token",
             Arguments::kZeroOrMore);
    a.option("--top-k", sampling.top_k, "only the k likeliest tokens; 0: all",
             Arguments::kZeroOrMore);
    a.option("--seed", sampling.seed, "seed of the draws");
    a.flag("--no-cache", no_cache, "recompute everything for each token");
    a.flag("--no-stop", no_stop, "go on behind a token that ends a text");
    compute.visit(a);
  }
};

void show(const std::string& text) {
  print_data(text);
  flush_results();
}

int sample(const OpenedRun& run, const std::string& prompt, const SamplingOptions& sampling,
           const Compute& compute) {
  const auto& tokenizer = run.data_description.tokenizer;
  const auto ids = tokenizer->encode(prompt, "--prompt").ids;
  if (ids.empty()) throw ConfigError("--prompt: is empty; give at least one character");
  show(prompt);
  DecodedStream stream(*tokenizer, ids.back());
  generate(*run.model, ids, sampling, compute, [&](int64_t id) { show(stream.next(id)); });
  show(stream.rest() + "\n");
  return kDone;
}

// What is for the other sort of model would be ignored.
void check_options(const GenerateOptions& o, bool pairs) {
  const SamplingOptions usual;
  const BeamOptions greedy;
  const auto& s = o.sampling;
  if (pairs && (o.no_stop || s.tokens != usual.tokens || s.temperature != usual.temperature ||
                s.top_k != usual.top_k || s.seed != usual.seed))
    throw ConfigError(
        "--tokens, --temperature, --top-k, --seed, --no-stop: are for models that continue a text; "
        "this one "
        "translates, by --beam and --length-power");
  if (!pairs && (o.beam.width != greedy.width || o.beam.power != greedy.power))
    throw ConfigError("--beam, --length-power: are for models that translate");
}

int run_generate(GenerateOptions& o) {
  const auto compute = o.compute.apply();
  const auto opened = open_named_run(o.run, compute.device);
  const auto& description = opened.data_description;
  if (!description.tokenizer)
    throw ConfigError(
        fmt::format("generate: the data kind '{}' has no text", opened.experiment.data.kind()));
  const auto why =
      why_no_cache(*opened.model, opened.experiment.model.as<ModelOptions>(), "generate");
  if (!why.empty() && !o.no_cache)
    tell("generate: {}: everything is computed again for each token", why);
  o.sampling.cache = o.beam.cache = why.empty() && !o.no_cache;
  if (!o.no_stop) o.sampling.ends = description.ends;
  const bool pairs = translates(description.shape);
  if (pairs && (!o.input || o.prompt))
    throw ConfigError("generate: this model translates; --input FILE names what");
  if (!pairs && o.input)
    throw ConfigError("--input: this model continues a text and translates none; use --prompt");
  check_options(o, pairs);
  if (!pairs) return sample(opened, o.prompt.value_or("\n"), o.sampling, compute);
  translate_lines(*opened.model, description, *o.input, opened.experiment.train.eval_batch, o.beam,
                  compute, [](const std::string& text) { show(text + "\n"); });
  return kDone;
}

const RegisterCommand generate_command(
    {.name = "generate",
     .summary = "sample from a trained language model, or translate",
     .example = "headlab generate runs/char_mha/0123abcd-s1337 --prompt 'ROMEO:' --tokens 300\n"
                "  headlab generate runs/multi30k_mha/0123abcd-s1337 --input test.de --beam 5",
     .group = Group::kLook},
    run_generate);

}  // namespace
}  // namespace headlab
