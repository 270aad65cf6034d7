// The test part of the data is measured once, behind the last update, and changes nothing else.
#include <cmath>

#include "experiments/files/h5.h"
#include "experiments/inference/evaluate.h"
#include "experiments/training/training_metrics.h"
#include "tests/scratch.h"
#include "tests/training_testing.h"

namespace headlab::test_test_metrics {
namespace {

using namespace training_testing;

std::string asking(const std::string& test, const std::string& train = "") {
  auto config = small("mha", train);
  return config.replace(config.find("eval_examples"), 0, "test: " + test + ", ");
}

Metrics without_time(Metrics metrics) {
  metrics.erase("tokens_per_s");
  return metrics;
}

TEST_CASE("the test part stands in the last row alone, and training is that of a run without it",
          "[training]") {
  const Scratch folder;
  const auto plain = run_in(folder / "plain", experiment_of(small("mha")));
  const auto asked = run_in(folder / "asked", experiment_of(asking("own")));
  REQUIRE(asked.exit_code == 0);
  CHECK_FALSE(plain.status.metrics.contains("test/loss"));
  CHECK(asked.status.metrics.contains("test/loss"));
  require_same_tensors(load_latest(folder / "plain")->model, load_latest(folder / "asked")->model);

  auto rows = read_metrics(folder / "asked" / "metrics.jsonl");
  const auto plain_rows = read_metrics(folder / "plain" / "metrics.jsonl");
  REQUIRE(rows.size() == plain_rows.size());
  const auto last = rows.back().values;
  for (const char* name : {"test/loss", "test/accuracy", "test/perplexity", "test/tokens",
                           "test/examples", "test/whole_split"})
    CHECK(rows.back().values.erase(name) == 1);
  for (size_t n = 0; n < rows.size(); ++n)
    CHECK(without_time(rows[n].values) == without_time(plain_rows[n].values));

  // It is what an evaluation of the trained model says.
  const auto experiment = experiment_of(asking("own"));
  const auto data = open_data(experiment.data);
  const auto model = build_model(experiment, data->shape(), at::kCPU);
  load_model(*model, load_latest(folder / "asked")->model);
  const auto measured = evaluate(*model, {data.get(), Split::kTest}, {at::kCPU});
  CHECK(measured.examples == 8);
  for (const auto& [name, value] : status_metrics(measured, data->task())) {
    INFO(name);
    CHECK(last.at(name) == Approx(value));
    CHECK(asked.status.metrics.at(name) == last.at(name));
  }
  CHECK(last.at("test/loss") != last.at("val/loss"));

  const H5File log = H5File::open(folder / "asked" / "log.h5");
  const auto losses = log.root().dataset("eval/test_loss").read<float>();
  const auto examples = log.root().dataset("eval/test_examples").read<float>();
  REQUIRE(losses.size() == 3);
  for (size_t n = 0; n + 1 < losses.size(); ++n) {
    CHECK(std::isnan(losses[n]));
    CHECK(std::isnan(examples[n]));
  }
  CHECK(losses.back() == Approx(last.at("test/loss")));
  CHECK(examples.back() == 8);
}

TEST_CASE("a run that ends early has the test part all the same", "[training]") {
  const Scratch folder;
  const auto early = experiment_of(asking("0.5", ", early_stop: {patience: 1}, lr: 1.0e-30"));
  const auto outcome = run_in(folder / "early", early);
  CHECK(outcome.status.step < 6);
  CHECK(outcome.status.metrics.contains("test/loss"));
  CHECK(read_metrics(folder / "early" / "metrics.jsonl").back().values.count("test/loss") == 1);
}

}  // namespace
}  // namespace headlab::test_test_metrics
