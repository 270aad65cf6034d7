// `headlab eval RUN`: loss and metrics of a checkpoint over a whole split.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/evaluate.h"

namespace headlab {
namespace {

struct EvalOptions {
  std::string run, split = "val";
  int64_t batch = 64;
  ComputeOptions compute;
  bool json = false;
};

int run(const EvalOptions& o) {
  const auto device = o.compute.apply();
  const auto split = split_named(o.split);
  auto opened = open_run(o.run, device);
  if (opened.data->examples(split) == 0)
    throw DataError(fmt::format("{}: its data has no examples of split {}; choose another --split",
                                o.run, o.split));
  const auto e = evaluate(*opened.model, *opened.data, split, o.batch, 0, device);
  if (o.json) {
    const nlohmann::ordered_json object{{"split", o.split},       {"step", opened.step},
                                        {"loss", e.loss},         {"perplexity", std::exp(e.loss)},
                                        {"accuracy", e.accuracy}, {"tokens", e.tokens},
                                        {"examples", e.examples}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print(
        "{} loss {:.4f} nat, perplexity {:.3f}, accuracy {:.4f} over {} tokens in {} examples "
        "(step {})\n",
        o.split, e.loss, std::exp(e.loss), e.accuracy, e.tokens, e.examples, opened.step);
  }
  return kDone;
}

const RegisterCommand eval_command({
    .name = "eval",
    .summary = "loss and metrics of a checkpoint over a whole split",
    .example = "headlab eval runs/char_mha/0123abcd-s1337 --json",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<EvalOptions>();
          a.option("run", o->run, "run or checkpoint directory", Arguments::kRequired);
          a.option("--split", o->split, "val, train or test");
          a.option("--batch", o->batch, "examples at a time", Arguments::kAboveZero);
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
