// The whole config of a run: defaults, limits, and what is said of mistakes.
#include <nlohmann/json.hpp>

#include "core/observe/probe.h"
#include "experiments/files/config_schema.h"
#include "experiments/models/model.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/statistic_names.h"
#include "experiments/training/update.h"
#include "tests/catch.h"
#include "tests/config_testing.h"

namespace headlab::test_experiment {
namespace {

Experiment read(const std::string& yaml) {
  Experiment experiment;
  read_config(experiment, parse_config(yaml, "run.yaml"));
  return experiment;
}

std::string complaint(const std::string& yaml) {
  return config_testing::error_of([&] { read(yaml); });
}

// A char model reads a file, which only opening it looks for.
const std::string kLeast = "name: a\ndata: {kind: copy}\n";

TEST_CASE("a name and a data source make an experiment, the rest has defaults") {
  const auto experiment = read(kLeast);
  CHECK(experiment.seed == 1337);
  CHECK(experiment.model.kind() == "decoder");
  CHECK(experiment.model.as<ModelOptions>().layers == 4);
  CHECK(experiment.train.floor() == Approx(1e-4));
  CHECK(experiment.train.decays_over(0) == 2000);
  const auto other = read(kLeast + "train: {steps: 7, decay_steps: 5, lr: 2.0, min_lr: 0.5}");
  CHECK(other.train.floor() == 0.5);
  CHECK(other.train.decays_over(0) == 5);
}

TEST_CASE("epochs and steps: the first that is reached ends the run") {
  const auto total = [](const std::string& train, int64_t examples) {
    return read(kLeast + "train: {batch: 4, " + train + "}").train.total_steps(examples);
  };
  CHECK(total("epochs: 3", 10) == 8);  // 30 examples, of the last update two more
  CHECK(total("epochs: 2, steps: 100", 8) == 4);
  CHECK(total("epochs: 2, steps: 3", 8) == 3);
  CHECK(total("steps: 3", 8) == 3);
  CHECK(total("lr: 1.0", 8) == 2000);
  CHECK(read(kLeast + "train: {batch: 4, epochs: 3}").train.decays_over(10) == 8);
  CHECK_FALSE(read(kLeast + "train: {epochs: 3}").train.steps);
  const auto endless = read(kLeast + "train: {epochs: 3}");
  CHECK_THROWS_WITH(
      endless.train.total_steps(0),
      Catch::Contains("train.epochs") && Catch::Contains("no epochs; give train.steps"));
}

TEST_CASE("a share of warm-up is one of all updates, by steps or epochs") {
  const auto warmup = [](const std::string& train, int64_t examples) {
    const auto options = read(kLeast + "train: {batch: 4, " + train + "}").train;
    return schedule_of(options, 16, examples).warmup;
  };
  CHECK(warmup("steps: 30, warmup: 0.1", 0) == 3);
  CHECK(warmup("epochs: 10, warmup: 0.1", 40) == 10);
  CHECK(warmup("epochs: 10, steps: 50, warmup: 0.1", 40) == 5);
  CHECK(warmup("steps: 30, warmup: 100", 0) == 100);
}

TEST_CASE("mistakes in an experiment are said with their place") {
  CHECK(complaint("data: {kind: copy}") ==
        "run.yaml:1:1: name: is missing; write name: <what the run is called>");
  CHECK(complaint("name: a/b\ndata: {kind: copy}") ==
        "run.yaml:1:7: name: must be of letters, digits, '_', '-' and '.', and not start with '.'");
  CHECK(complaint(kLeast + "train: {schedule: cosin}") ==
        "run.yaml:3:19: train.schedule: must be one of cosine, linear, constant, inverse_sqrt, "
        "noam; did you mean 'cosine'?");
  CHECK(complaint(kLeast + "train: {busy_cores: false}") ==
        "run.yaml:3:21: train.busy_cores: must be one of auto, off");
  CHECK(complaint(kLeast + "train: {schedule: noam, warmup: 0}") ==
        "run.yaml:3:33: train.warmup: must be at least 1 with noam");
  CHECK(complaint(kLeast + "train: {lr: 0.1, min_lr: 0.2}") ==
        "run.yaml:3:26: train.min_lr: must be at most lr, 0.1");
  CHECK(complaint(kLeast + "train: {betas: [0.9]}") ==
        "run.yaml:3:16: train.betas: must be two numbers");
  CHECK(complaint(kLeast + "train: {batch: 12, accumulate: 5}") ==
        "run.yaml:3:32: train.accumulate: must divide batch, 12");
  CHECK(complaint(kLeast + "log: {stats: [entropi, all]}") ==
        "run.yaml:3:14: log.stats: no statistic is called 'entropi'; did you mean 'entropy'?");
  CHECK(complaint(kLeast + "log: {attention: {layers: [0, 4], heads: 7}}") ==
        "run.yaml:3:27: log.attention.layers: 4 is out of range: the model has 4 layers\n"
        "run.yaml:3:42: log.attention.heads: 7 is out of range: the model has 4 heads");
  CHECK(complaint(kLeast + "model: {attention: {kind: mha, bais: true}, heads: 3}") ==
        "run.yaml:3:32: model.attention.bais: unknown key; did you mean 'bias'?");
}

TEST_CASE("log.stats names statistics: the usual ones, all, or those in the table's order") {
  CHECK(read(kLeast).log.statistics() == default_statistics());
  CHECK(read(kLeast + "log: {stats: all}").log.statistics() == statistic_names());
  const auto names = statistic_names();
  const auto two = read(kLeast + "log: {stats: [" + names[3] + ", " + names[1] + "]}");
  CHECK(two.log.statistics() == std::vector<std::string>{names[1], names[3]});
}

TEST_CASE("the resolved experiment reads back to the same values") {
  auto experiment = read(kLeast +
                         "model: {heads: 2, position: rope, attention_at: {\"1\": {bias: true}}}\n"
                         "train: {lr: 0.1, max_time: 60.0}\nlog: {stats: all}");
  const auto full = write_block(experiment);
  auto again = read(to_yaml(full));
  CHECK(write_block(again) == full);
  CHECK_NOTHROW(nlohmann::json::parse(schema_of(experiment)));
}

}  // namespace
}  // namespace headlab::test_experiment
