// `headlab generate RUN --prompt TEXT`: samples from a language model; the text alone on stdout.
#include "experiments/training/generate.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/models/stack_options.h"
#include "experiments/runs/open_run.h"

namespace headlab {
namespace {

struct GenerateOptions {
  std::string run, prompt = "\n";
  SamplingOptions sampling;
  ComputeOptions compute;
  bool no_cache = false;

  void visit(Arguments& a) {
    a.run("run", run);
    a.option("--prompt", prompt, "text to continue (default: a new line)");
    a.option("--tokens", sampling.tokens, "tokens to add", Arguments::kZeroOrMore);
    a.option("--temperature", sampling.temperature, "0: the likeliest token",
             Arguments::kZeroOrMore);
    a.option("--top-k", sampling.top_k, "only the k likeliest tokens; 0: all",
             Arguments::kZeroOrMore);
    a.option("--seed", sampling.seed, "seed of the draws");
    a.flag("--no-cache", no_cache, "recompute everything for each token");
    compute.visit(a);
  }
};

// Heads that see later tokens cannot say what comes next; others may lack a cache only.
void check_heads(Model& model, const ModelOptions& options, bool cache) {
  const auto sites = model.sites();
  for (const auto* stack : options.stacks())
    for (const auto& site : sites)
      for (size_t layer = 0; site.name == stack->site() && layer < site.layers.size(); ++layer) {
        if (!site.within_ids()) continue;
        const auto& traits = (*site.layers[layer])->traits();
        const auto& kind = stack->attention_of(static_cast<int64_t>(layer)).kind();
        if (!traits.causal)
          throw ConfigError(fmt::format(
              "generate: '{}' heads (layer {}) are not causal: they cannot decode", kind, layer));
        if (!traits.decodes && cache)
          throw ConfigError(
              fmt::format("generate: '{}' heads (layer {}) cannot decode with a cache; "
                          "--no-cache recomputes everything for each token",
                          kind, layer));
      }
}

int run_generate(const GenerateOptions& o) {
  const auto compute = o.compute.apply();
  auto opened = open_named_run(o.run, compute.device);
  const auto tokenizer = opened.data_description.tokenizer;
  if (!tokenizer)
    throw ConfigError(
        fmt::format("generate: the data kind '{}' has no text", opened.experiment.data.kind()));
  check_heads(*opened.model, opened.experiment.model.as<ModelOptions>(), !o.no_cache);
  auto sampling = o.sampling;
  sampling.cache = !o.no_cache;
  const auto prompt = tokenizer->encode(o.prompt, "--prompt").ids;
  if (prompt.empty()) throw ConfigError("--prompt: is empty; give at least one character");
  auto print = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  print(o.prompt);
  DecodedStream stream(*tokenizer, prompt.back());
  generate(*opened.model, prompt, sampling, compute, [&](int64_t id) { print(stream.next(id)); });
  print(stream.rest() + "\n");
  return kDone;
}

const RegisterCommand generate_command(
    {.name = "generate",
     .summary = "sample from a trained language model",
     .example = "headlab generate runs/char_mha/0123abcd-s1337 --prompt 'ROMEO:' --tokens 300",
     .group = Group::kLook},
    run_generate);

}  // namespace
}  // namespace headlab
