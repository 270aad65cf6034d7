// `headlab eval RUN`: loss and metrics of a checkpoint over a whole split, or over a given text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/commands/report.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/evaluate.h"

namespace headlab {
namespace {

struct EvalOptions {
  std::string run;
  std::optional<std::string> split;
  int64_t batch = 64;
  GivenData given;
  ComputeOptions compute;
  bool json = false;

  void visit(Arguments& a) {
    a.run("run", run);
    given.visit(a);
    a.option("--split", split, "train, val or test (default: val)");
    a.option("--batch", batch, "examples at a time", Arguments::kAboveZero);
    compute.visit(a);
    a.flag("--json", json, "print one JSON object");
  }
};

int run_eval(const EvalOptions& o) {
  const auto compute = o.compute.apply();
  auto opened = open_named_run(o.run, compute.device);
  o.given.open(opened);
  const auto split = split_of(opened, o.run, o.split);
  const auto e = evaluate(*opened.model, *opened.data, split, o.batch, 0, compute);
  auto object = examples_json(opened, split);
  object["step"] = opened.step;
  std::vector<std::string> texts;
  for (const auto& mean : e.means) {
    object[mean.name] = mean.value;
    texts.push_back(to_text(mean));
    if (mean.units != "nat") continue;
    object["perplexity"] = std::exp(mean.value);
    texts.push_back(fmt::format("perplexity {:.3f}", std::exp(mean.value)));
  }
  object.update(measured_json(e));
  const auto of = o.given.data ? " of " + *o.given.data : o.given.text ? " text" : "";
  return print(
      {.object = object,
       .text = fmt::format("{}{} {}; {} in {} examples (step {})\n", split_name(split), of,
                           fmt::join(texts, ", "), measured_text(e), e.examples, opened.step)},
      o.json);
}

const RegisterCommand eval_command(
    {.name = "eval",
     .summary = "loss and metrics of a checkpoint over a whole split or a given text",
     .example = "headlab eval runs/char_mha/0123abcd-s1337 --json\n"
                "  headlab eval runs/char_mha/0123abcd-s1337 --data other.txt",
     .group = Group::kLook},
    run_eval);

}  // namespace
}  // namespace headlab
