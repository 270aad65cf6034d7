// `headlab eval RUN`: loss and metrics of a checkpoint over a whole split.
#include <fmt/format.h>

#include <cmath>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/commands/report.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/evaluate.h"

namespace headlab {
namespace {

struct EvalOptions {
  std::string run, split = "val";
  int64_t batch = 64;
  ComputeOptions compute;
  bool json = false;

  void visit(Arguments& a) {
    a.option("run", run, "run or checkpoint directory", Arguments::kRequired);
    a.option("--split", split, "val, train or test");
    a.option("--batch", batch, "examples at a time", Arguments::kAboveZero);
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

int run_eval(const EvalOptions& o) {
  const auto device = o.compute.apply();
  const auto split = split_named(o.split);
  auto opened = open_run(o.run, device);
  if (opened.data->examples(split) == 0)
    throw DataError(fmt::format("{}: its data has no examples of split {}; choose another --split",
                                o.run, o.split));
  const auto e = evaluate(*opened.model, *opened.data, split, o.batch, 0, device);
  nlohmann::ordered_json object{{"split", o.split}, {"step", opened.step}};
  std::vector<std::string> texts;
  for (const auto& mean : e.means) {
    object[mean.name] = mean.value;
    texts.push_back(to_text(mean));
    if (mean.units != "nat") continue;
    object["perplexity"] = std::exp(mean.value);
    texts.push_back(fmt::format("perplexity {:.3f}", std::exp(mean.value)));
  }
  object["tokens"] = e.tokens, object["examples"] = e.examples;
  return print({.object = object,
                .text = fmt::format("{} {} over {} tokens in {} examples (step {})\n", o.split,
                                    fmt::join(texts, ", "), e.tokens, e.examples, opened.step)},
               o.json);
}

const RegisterCommand eval_command(
    {.name = "eval",
     .summary = "loss and metrics of a checkpoint over a whole split",
     .example = "headlab eval runs/char_mha/0123abcd-s1337 --json"},
    run_eval);

}  // namespace
}  // namespace headlab
