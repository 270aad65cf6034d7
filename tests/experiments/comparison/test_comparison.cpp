// Sizes that are matched, data that arms share, and what curves say.
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/comparison/comparison.h"
#include "experiments/comparison/comparison_results.h"
#include "experiments/comparison/curves.h"
#include "experiments/comparison/matched_size.h"
#include "experiments/measuring/two_groups.h"
#include "experiments/runs/run_data.h"
#include "headlab_build.h"
#include "tests/data_testing.h"
#include "tests/scratch.h"
#include "tests/task_testing.h"

namespace headlab::test_comparison {
namespace {

using Catch::Contains;

const std::string kTask = R"(name: tiny
data: {kind: induction, symbols: 16, context: 16}
model: {kind: decoder, layers: 2, d_model: 32, heads: 4, attention: {kind: mha}}
train: {steps: 10, batch: 4}
)";

Comparison of_tasks(const std::string& tasks, const std::string& kinds,
                    const std::string& more = "", const std::vector<std::string>& overrides = {}) {
  const Scratch scratch;
  write_bytes(scratch / "task.yaml", kTask);
  write_bytes(scratch / "c.yaml",
              fmt::format("{}\nkinds: {}\nrates: 1.0e-3\nseeds: [1, 2]\n{}", tasks, kinds, more));
  return resolve_comparison(comparison_in(scratch / "c.yaml"), overrides, scratch / "runs");
}

// A comparison of these arms on kTask.
Comparison resolved(const std::string& kinds, const std::string& more = "",
                    const std::vector<std::string>& overrides = {}) {
  return of_tasks("tasks: [task.yaml]", kinds, more, overrides);
}

TEST_CASE("an arm has as many parameters as the baseline, by the width of its MLP", "[compare]") {
  const auto comparison = resolved("[mha, {name: more, set: {model.head_dim: 16}}]");
  const auto &mha = comparison.arms[0][0], &more = comparison.arms[0][1];
  CHECK(mha.hidden_width() == 128);
  CHECK_FALSE(mha.adapted);
  CHECK(mha.excess == 0);
  // Twice the width of every head: 4 D^2 a layer more, of 2 D a unit of the MLP.
  REQUIRE(more.adapted);
  CHECK(*more.adapted == 128 - 2 * 32);
  CHECK(more.hidden_width() == *more.adapted);
  CHECK(more.head_dim() == 16);
  CHECK(std::abs(more.excess) <= 0.001);
  CHECK(more.unmatched.empty());
}

TEST_CASE("head_dim is adapted where that is asked for", "[compare]") {
  const auto comparison =
      resolved("[mha, {name: wide, set: {model.d_ff: 160}}]", "match: head_dim\n");
  const auto& wide = comparison.arms[0][1];
  REQUIRE(wide.adapted);
  CHECK(wide.head_dim() == *wide.adapted);
  CHECK(*wide.adapted == 4);  // 8 less 32 * 2 D / (4 * 4 D)
  CHECK(std::abs(wide.excess) <= kMatchedWithin);
}

std::vector<std::string> names_of(const std::vector<FinalMetric>& metrics) {
  std::vector<std::string> names;
  for (const auto& metric : metrics)
    names.push_back(metric.name + (metric.higher_is_better ? " up" : " down"));
  return names;
}

TEST_CASE("arms are compared by the loss and by what the task is judged by, in its direction",
          "[compare]") {
  using Names = std::vector<std::string>;
  const auto of = [](const std::string& data) {
    return names_of(final_metrics(*testing::open(data), Split::kValidation));
  };
  CHECK(of("kind: induction") == Names{"val/loss down", "val/accuracy up"});
  CHECK(of("kind: recall") == Names{"val/loss down", "val/example_accuracy up"});
  CHECK(of("kind: memorization") == Names{"val/loss down", "val/macro_accuracy up"});
  const testing::Folder folder;
  folder.write("text.txt", std::string(2000, 'a') + std::string(2000, 'b'));
  CHECK(names_of(final_metrics(*testing::open("kind: char, path: text.txt", folder.path()),
                               Split::kValidation)) == Names{"val/loss down"});
}

TEST_CASE("a test part is what arms are compared on, and validation what they are chosen by",
          "[compare]") {
  const auto comparison = resolved("[mha, moh]", "", {"data.test=own"});
  const auto& metrics = compared_metrics(comparison, 0);
  CHECK(names_of(metrics) == std::vector<std::string>{"test/loss down", "test/accuracy up"});
  CHECK(metrics[0].in_training == "val/loss");
  CHECK(comparison.baseline(0).measured_on() == Split::kTest);
  const auto rule = solved_rule(comparison, 0);
  REQUIRE(rule);
  CHECK(rule->metric == "test/accuracy");
  CHECK(rule->in_training == "val/accuracy");
}

TEST_CASE("a comparison lies in one folder, whatever the machine and the rates of its configs",
          "[compare]") {
  const auto folder = [](const std::vector<std::string>& overrides) {
    return resolved("[mha, moh]", "", overrides).folder.filename();
  };
  const auto usual = folder({});
  CHECK(folder({"train.threads=1"}) == usual);
  CHECK(folder({"train.busy_cores=off"}) == usual);
  CHECK(folder({"train.batch=8"}) != usual);
  CHECK(folder({"train.min_lr=1.0e-5"}) != usual);
}

TEST_CASE("a task may take some of the arms, and the others are no part of its family",
          "[compare]") {
  const auto file = [](const std::string& kinds) {
    return fmt::format("tasks: [task.yaml, {{name: two, base: task.yaml, kinds: {}}}]", kinds);
  };
  const auto comparison = of_tasks(file("[mha, sink]"), "[mha, moh, sink]");
  CHECK(family_size(comparison, 0) == 2);
  CHECK(family_size(comparison, 1) == 1);
  CHECK(comparison.arms[1][1].left_out);
  CHECK_FALSE(comparison.arms[1][1].takes_part());
  CHECK_FALSE(comparison.arms[0][1].left_out);
  CHECK_THROWS_WITH(of_tasks(file("[mha, snk]"), "[mha, sink]"),
                    Contains("tasks[1].kinds: no arm is called 'snk'; did you mean 'sink'?"));
  CHECK_THROWS_WITH(of_tasks(file("[sink]"), "[mha, sink]"),
                    Contains("tasks[1].kinds: must have the baseline, 'mha'"));
}

TEST_CASE("data that leave no validation loss leave nothing to compare", "[compare]") {
  const auto data = testing::open("kind: induction");
  CHECK(final_metrics(testing::WithTask(*data, embedding_task()), Split::kValidation).empty());
  CHECK_FALSE(
      final_metrics(testing::WithTask(*data, prediction_task()), Split::kValidation).empty());
}

TEST_CASE("what solves a task is its own metric, of tasks that are solved or not", "[compare]") {
  const auto comparison = resolved("[mha, moh, linformer]");
  const auto rule = solved_rule(comparison, 0);
  REQUIRE(rule);
  CHECK(rule->metric == "val/accuracy");
  CHECK(rule->met(0.9));
  CHECK_FALSE(rule->met(0.89));
  CHECK(family_size(comparison, 0) == 1);  // without the baseline, and one that has no place
  CHECK_FALSE(solved_rule(resolved("[mha]", "", {"data={kind: memorization}"}), 0));
}

TEST_CASE("one of the tasks can be meant alone", "[compare]") {
  const Scratch scratch;
  write_bytes(scratch / "task.yaml", kTask);
  write_bytes(scratch / "c.yaml",
              "tasks: [{name: short, base: task.yaml, set: {train.steps: 4}}, "
              "{name: long, base: task.yaml, set: {train.steps: 20}}]\n"
              "kinds: [mha]\nrates: 1.0e-3\nseeds: [1, 2]\n");
  const auto of = [&](const std::string& task) {
    return resolve_comparison(comparison_in(scratch / "c.yaml"), {}, scratch / "runs", task);
  };
  const auto alone = of("long"), both = of("");
  REQUIRE(alone.written.tasks.size() == 1);
  CHECK(alone.arms[0][0].steps == 20);
  CHECK(both.arms.size() == 2);
  CHECK(alone.folder != both.folder);
  CHECK_THROWS_WITH(of("lang"), (scratch / "c.yaml").string() +
                                    ": no task is called 'lang'; did you mean 'long'?; there are: "
                                    "short, long");
}

TEST_CASE("what is not matched is said", "[compare]") {
  const std::string wide = "[mha, {name: wide, set: {model.d_ff: 192}}]";
  const auto none = resolved(wide, "match: none\n").arms[0][1];
  CHECK_FALSE(none.adapted);
  CHECK(none.excess > kMatchedWithin);
  CHECK_THAT(none.unmatched, Contains("% parameters: match: none"));
  // More than all of the MLP.
  const auto far = resolved("[mha, {name: huge, set: {model.head_dim: 64}}]").arms[0][1];
  CHECK(far.excess > kMatchedWithin);
  CHECK_THAT(far.unmatched, Contains("no model.d_ff makes it as large"));
}

TEST_CASE("an arm with other data, length or batch is not on equal terms", "[compare]") {
  const auto of = [](const std::string& setting) {
    return resolved("[mha, {name: other, set: {" + setting + "}}]").arms[0][1].unequal;
  };
  CHECK(of("model.layers: 1").empty());
  CHECK(of("train.weight_decay: 0.2").empty());
  CHECK(of("data.symbols: 12") == "data");
  CHECK(of("train.steps: 20") == "train.steps");
  CHECK(of("train.batch: 8, train.eval_batches: 1") == "train.batch, train.eval_batches");
}

TEST_CASE("arms may be matched by the FLOPs of a token", "[compare]") {
  const std::string kinds = "[mha, {name: wide, set: {model.head_dim: 16}}]";
  const auto arms = resolved(kinds, "match: flops\n").arms[0];
  REQUIRE(arms[1].adapted);
  CHECK(std::abs(arms[1].flops_per_token / arms[0].flops_per_token - 1) <= kMatchedWithin);
  CHECK(arms[1].unmatched.empty());
  CHECK(arms[1].excess != 0);  // scores take FLOPs and have no parameters
}

TEST_CASE("a table of learned positions does not count where parameters are matched", "[compare]") {
  const auto arms =
      resolved(
          "[{name: mha, set: {model.position: rope}}, "
          "{name: learned, attention: mha, set: {model.position: learned, data.context: 512}}]")
          .arms[0];
  CHECK(arms[1].parameters > arms[0].parameters * 1.02);
  CHECK_FALSE(arms[1].adapted);
  CHECK(arms[1].excess == 0);
  CHECK(arms[1].unequal == "data");
}

TEST_CASE("an arm that is within the limit stays as it is written", "[compare]") {
  const auto talking = resolved("[mha, talking]").arms[0][1];
  CHECK(talking.parameters > 0);
  CHECK_FALSE(talking.adapted);
  CHECK(talking.excess > 0);
  CHECK(talking.excess <= kMatchedWithin);
}

TEST_CASE("a kind that cannot be causal has no place on a causal task", "[compare]") {
  const auto linformer = resolved("[mha, linformer]").arms[0][1];
  CHECK_FALSE(linformer.takes_part());
  CHECK(linformer.cannot == "'linformer' heads cannot be causal");
  CHECK_THROWS_WITH(resolved("[linformer, moh]"), Contains("baseline") && Contains("linformer"));
}

TEST_CASE("mistakes in an arm are named where they stand", "[compare]") {
  CHECK_THROWS_WITH(
      resolved("[mha, {name: x, set: {model.layer: 1}}]"),
      Contains("c.yaml:2:") && Contains("model.layer: unknown key; did you mean 'layers'?"));
  CHECK_THROWS_WITH(resolved("[mha]", "", {"train.lr=0.1"}),
                    Contains("override: train.lr: is chosen for each arm"));
  CHECK_THROWS_WITH(resolved("[mha]", "", {"train.schedule=noam"}),
                    Contains("train.schedule: noam"));
}

TEST_CASE("a comparison finds itself, and another one lies elsewhere", "[compare]") {
  const auto hash = [](const Comparison& one) { return one.folder.filename().string(); };
  CHECK(hash(resolved("[mha, moh]")) == hash(resolved("[mha, moh]")));
  CHECK(hash(resolved("[mha, moh]")) != hash(resolved("[mha, talking]")));
  CHECK(hash(resolved("[mha, moh]")) != hash(resolved("[mha, moh]", "baseline: moh\n")));
  CHECK(hash(resolved("[mha, moh]")) != hash(resolved("[mha, moh]", "", {"train.steps=11"})));
}

TEST_CASE("arms of one seed train on the same data in the same order", "[compare]") {
  const auto comparison = resolved("[mha, moh, {name: one, set: {model.heads: 1}}]");
  const auto of = [&](size_t arm) {
    return open_training_data(comparison.arms[0][arm].experiment);
  };
  const auto data = of(0);
  for (const size_t arm : {1, 2})
    for (const int64_t step : {0, 1, 7}) {
      CHECK(
          at::equal(data->train_batch(3, step, 0, 4).ids, of(arm)->train_batch(3, step, 0, 4).ids));
      CHECK_FALSE(
          at::equal(data->train_batch(3, step, 0, 4).ids, of(arm)->train_batch(4, step, 0, 4).ids));
    }
}

TEST_CASE("the comparisons of configs/compare have arms on every task", "[compare]") {
  const std::filesystem::path folder = std::filesystem::path(build::kSourceDir) / "configs/compare";
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    const auto comparison = resolve_comparison(comparison_in(entry.path()), {}, "runs");
    ++files;
    for (size_t task = 0; task < comparison.arms.size(); ++task)
      for (const auto& arm : comparison.arms[task]) {
        CHECK((!arm.takes_part() || arm.parameters > 0));
        CHECK((arm.unmatched.empty() || comparison.written.tasks[task].match == Match::kNone));
      }
    // Where all seeds of an arm solve a task and none of the baseline's, that is reported.
    const auto seeds = std::ssize(comparison.written.seeds);
    for (size_t task = 0; task < comparison.arms.size(); ++task)
      if (comparison.baseline(task).solved_at)
        CHECK(static_cast<double>(family_size(comparison, task)) *
                  fisher_p_value(0, seeds, seeds, seeds) <
              0.05);
  }
  CHECK(files >= 2);
}

const Curve kCurve{{.step = 10, .flops = 100, .wall_s = 1, .loss = 4},
                   {.step = 20, .flops = 200, .wall_s = 3, .loss = 2},
                   {.step = 30, .flops = 300, .wall_s = 5, .loss = 1}};

TEST_CASE("compute for a loss is read between points, never beyond them", "[compare]") {
  CHECK(compute_for(kCurve, 3).bound == Reach::kAt);
  CHECK(compute_for(kCurve, 3).flops == 150);
  CHECK(compute_for(kCurve, 1).flops == 300);
  CHECK(compute_for(kCurve, 1).bound == Reach::kAt);
  CHECK(compute_for(kCurve, 0.9).bound == Reach::kAbove);
  CHECK(compute_for(kCurve, 0.9).flops == 300);
  CHECK(compute_for(kCurve, 4).bound == Reach::kAt);
  CHECK(compute_for(kCurve, 5).bound == Reach::kBelow);
  CHECK(compute_for({}, 5).bound == Reach::kNone);
}

TEST_CASE("a kind that does not say its FLOPs has no effective speedup, and none is set beside it",
          "[compare]") {
  auto unknown = kCurve;
  for (auto& point : unknown) point.flops = NAN;
  ComparedArm arm;
  arm.reach = compute_for(kCurve, 3);
  CHECK_FALSE(arm.speedup());
  arm.flops = 300;
  CHECK(arm.speedup() == 0.5);
  arm.reach = compute_for(unknown, 3);
  CHECK_FALSE(arm.speedup());
}

TEST_CASE("the loss at a time is read between points, and is none beyond them", "[compare]") {
  CHECK(loss_at(kCurve, 2) == 3);
  CHECK(loss_at(kCurve, 5) == 1);
  CHECK_FALSE(loss_at(kCurve, 5.1));
  CHECK_FALSE(loss_at(kCurve, 0.5));
}

TEST_CASE("a curve has the evaluations of a training, and a mean the steps of all", "[compare]") {
  const auto rows = [](double loss) {
    return std::vector<MetricsRow>{{0, 0, 0, {{"train/loss", 9}}},
                                   {5, 50, 1, {{"val/loss", loss}, {"val/examples", 7}}},
                                   {6, 60, 2, {{"val/loss", NAN}}},
                                   {9, 90, 3, {{"val/loss", loss - 1}}}};
  };
  const auto curve = curve_of(rows(4), 10);
  REQUIRE(curve.size() == 2);
  CHECK(curve[0].flops == 3 * 10 * 50);
  CHECK(curve[0].examples == 7);
  auto shorter = curve_of(rows(6), 10);
  shorter.pop_back();
  const auto mean = mean_curve({curve, shorter});
  REQUIRE(mean.size() == 1);
  CHECK(mean[0].step == 5);
  CHECK(mean[0].loss == 5);
  REQUIRE(mean[0].spread);
  CHECK(mean[0].spread->low == Approx(5 - 12.7062));
}

}  // namespace
}  // namespace headlab::test_comparison
