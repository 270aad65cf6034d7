// The numbers of a training run: each named once, in the log, in metrics.jsonl and in the status.
#include "core/torch.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/training_metrics.h"
#include "tests/catch.h"
#include "tests/task_testing.h"

namespace headlab::test_training_metrics {
using namespace testing;

namespace {

struct Bench {
  Experiment experiment;
  std::shared_ptr<DataSource> data;
  std::shared_ptr<Model> model;

  explicit Bench(const std::string& attention = "{kind: mha}", const std::string& train = "") {
    read_config(experiment,
                parse_config("name: small\n"
                             "data: {kind: copy, symbols: 6, context: 8, eval_examples: 10}\n"
                             "model: {kind: decoder, layers: 1, d_model: 8, heads: 2, attention: " +
                                 attention + "}\ntrain: {batch: 4" + train + "}\n",
                             "test"));
    data = open_data(experiment.data);
    model = build_model(experiment, data->shape(), at::kCPU);
  }
  std::vector<TrainingMetric> table(const Task& task = prediction_task()) const {
    return training_metrics(experiment, *model, task);
  }
};

std::vector<std::string> names_of(const std::vector<LogVariable>& variables) {
  std::vector<std::string> names;
  for (const auto& variable : variables) names.push_back(variable.name);
  return names;
}

TEST_CASE("an evaluation has the metrics that its task names, over what is scored") {
  const Bench bench;
  const SaysZero task;
  const WithTask data(*bench.data, task);
  const auto measured = evaluate(*bench.model, {&data, Split::kValidation, 3}, {at::kCPU});
  REQUIRE(measured.means.size() == 3);
  CHECK(measured.examples == 10);
  bench.model->eval();
  const auto all = bench.data->eval_batch(Split::kValidation, 0, 10);
  const auto sums = task.sums(bench.model->forward(all, {}).logits, all);
  const auto scored = task.scored(all).item<int64_t>();
  CHECK(measured.tokens == scored);
  for (int64_t n = 0; n < 3; ++n) {
    const auto& mean = measured.means[n];
    CHECK(mean.name == task.metrics()[n].name);
    CHECK(mean.value == Approx(sums[n].item<double>() / static_cast<double>(scored)));
    CHECK(measured.mean(mean.name) == mean.value);
  }
  CHECK(measured.loss() == measured.mean("surprise"));
  CHECK_THROWS_AS(measured.mean("accuracy"), std::out_of_range);
  CHECK_THAT(means_text(measured),
             Catch::Matchers::StartsWith("surprise ") && Catch::Contains(" nat, says_"));

  const auto status = status_metrics(measured, task);
  CHECK(status == Metrics{{"val/surprise", measured.loss()},
                          {"val/perplexity", std::exp(measured.loss())},
                          {"val/says_zero", measured.mean("says_zero")},
                          {"val/square", measured.mean("square")},
                          {"val/tokens", static_cast<double>(scored)},
                          {"val/examples", 10},
                          {"val/whole_split", 1}});
  // The log and metrics.jsonl say the same.
  const auto table = bench.table(task);
  CHECK(line_of(table, {.evaluation = measured}) == status);
  CHECK(logged(table, MetricGroup::kEvals, {.evaluation = measured}) ==
        RunLog::Values{{"val_surprise", measured.loss()},
                       {"val_says_zero", measured.mean("says_zero")},
                       {"val_square", measured.mean("square")},
                       {"val_tokens", static_cast<double>(scored)},
                       {"val_examples", 10},
                       {"val_whole_split", 1}});
  CHECK(names_of(variables_of(table, MetricGroup::kEvals)) ==
        std::vector<std::string>{"val_surprise", "val_says_zero", "val_square", "val_tokens",
                                 "val_examples", "val_whole_split"});
  CHECK(table.front().name == "train_loss");
  CHECK(table.front().comment == "mean of -ln p(0) of the update");
}

TEST_CASE("the beginnings of a split are measured in one pass as each alone") {
  const Bench bench;
  const SaysZero task;
  const WithTask data(*bench.data, task);
  const std::vector<int64_t> most{2, 0, 4, 1};
  const auto parts = evaluate_parts(*bench.model, {&data, Split::kValidation, 3}, most, {at::kCPU});
  REQUIRE(parts.size() == most.size());
  for (size_t n = 0; n < most.size(); ++n) {
    const auto alone = evaluate(*bench.model, {&data, Split::kValidation, 3, most[n]}, {at::kCPU});
    CHECK(parts[n].examples == std::vector<int64_t>{6, 10, 10, 3}[n]);
    CHECK(parts[n].whole_split() == (n == 1 || n == 2));  // four batches of three are all ten
    CHECK(measured_json(parts[n]) == measured_json(alone));
    for (const auto& mean : alone.means) CHECK(parts[n].mean(mean.name) == mean.value);
  }
  CHECK(parts[0].loss() != parts[1].loss());
  auto measured = parts[0];
  measured.tokens = 1234567;
  CHECK(measured_text(measured) == "first 2 batches, 1,234,567 tokens");
  measured.batches = 0, measured.tokens = 81920;
  CHECK(measured_text(measured) == "whole split, 81,920 tokens");
  measured.of_split = {81920, 81943};  // the last 23 fill no window
  CHECK(measured_text(measured) == "whole split, 81,920 of 81,943 tokens");
  CHECK(measured.whole_split());
}

TEST_CASE("of a text that was given it is said how much was measured") {
  Evaluation measured{.split = Split::kWhole, .tokens = 64, .examples = 1, .of_split = {64, 94}};
  CHECK(measured_text(measured) == "first 64 of 94 tokens");
  CHECK_FALSE(measured.whole_split());
  CHECK(measured_json(measured).at("whole_split") == false);
  CHECK(measured_json(measured).at("split_tokens") == 94);
  measured.tokens = 9;  // of masked words
  CHECK(measured_text(measured) == "first 64 of 94 tokens, 9 scored");
  measured = {.split = Split::kWhole, .tokens = 59, .examples = 1, .of_split = {60, 60}};
  CHECK(measured_text(measured) == "whole split, 59 tokens");
  CHECK(measured.whole_split());
}

TEST_CASE("no two numbers of a run have one name, and each has a unit and a formula") {
  for (const std::string attention :
       {"{kind: mha}", "{kind: moh}", "{kind: gated, target: {heads: 1}}"}) {
    INFO(attention);
    const auto table = Bench(attention, ", label_smoothing: 0.1").table();
    std::set<std::string> names, lines;
    for (const auto& metric : table) {
      INFO(metric.name);
      CHECK(names.insert(metric.name).second);
      CHECK((metric.line.empty() || lines.insert(metric.line).second));
      CHECK_FALSE(metric.units.empty());
      CHECK_FALSE(metric.long_name.empty());
      CHECK_FALSE(metric.comment.empty());
    }
    CHECK(lines.count("train/smoothed_loss") == 1);
  }
}

TEST_CASE("a row goes to the log and to metrics.jsonl by the same table") {
  const Bench bench("{kind: gated, target: {heads: 1}}", ", label_smoothing: 0.1");
  const auto table = bench.table();
  TrainingRow row;
  row.losses = {.nll = 2, .smoothed = 2.5, .aux = {{"gate_target", 0.25}}};
  const Metrics losses{{"train/loss", 2}, {"train/smoothed_loss", 2.5}, {"aux/gate_target", 0.25}};
  CHECK(line_of(table, row) == losses);
  // Before the first update the log has zeros, and what is not known at all is left out.
  CHECK(logged(table, MetricGroup::kScalars, row) == RunLog::Values{{"train_loss", 2},
                                                                    {"smoothed_loss", 2.5},
                                                                    {"aux_gate_target", 0.25},
                                                                    {"aux_loss", 0.25},
                                                                    {"lr", 0},
                                                                    {"grad_norm", 0},
                                                                    {"tokens_per_s", 0}});
  row.update = {.lr = 0.5, .grad_norm = 3, .tokens_per_s = 100};
  row.gates = {.heads = 2, .undecided = 1, .alive = 2, .expected = 1.5};
  auto line = losses;
  line.merge(Metrics{{"lr", 0.5},
                     {"grad_norm", 3},
                     {"tokens_per_s", 100},
                     {"gates/undecided", 1},
                     {"gates/alive", 2},
                     {"gates/expected", 1.5}});
  CHECK(line_of(table, row) == line);
  const auto values = logged(table, MetricGroup::kScalars, row);
  CHECK(values.at("lr") == 0.5);
  CHECK(values.at("gates_expected") == 1.5);
  CHECK(values.size() == variables_of(table, MetricGroup::kScalars).size());
  CHECK(logged(table, MetricGroup::kEvals, row).empty());

  row.losses->aux["unheard_of"] = 1;
  CHECK_THROWS_WITH(logged(table, MetricGroup::kScalars, row), Catch::Contains("unheard_of"));
}

}  // namespace
}  // namespace headlab::test_training_metrics
