// What a change of a model did to what its task asks, whatever that is.
#include <fmt/format.h>

#include <cmath>

#include "core/torch.h"
#include "experiments/measuring/ablation_report.h"
#include "experiments/pruning/prune.h"
#include "experiments/text/number_text.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/models_testing.h"
#include "tests/task_testing.h"

namespace headlab::test_change_of_outputs {
using namespace testing;

namespace {

struct Subject {
  std::shared_ptr<DataSource> copies =
      open("kind: copy, symbols: 9, context: 12, eval_examples: 10");
  SaysZero task;
  WithTask data{*copies, task};
  std::shared_ptr<Model> whole = model(), changed = model();

  Subject() { remove_heads(*changed, {{0, 1}, {1, 2}}); }
  std::shared_ptr<Model> model() const {
    return small_decoder("{layers: 2, d_model: 24, heads: 3}", copies->vocabulary());
  }
};

std::vector<std::string> names_of(const std::vector<LogVariable>& variables) {
  std::vector<std::string> names;
  for (const auto& variable : variables) names.push_back(variable.name);
  return names;
}

}  // namespace

TEST_CASE("what every target has in a metric adds up to the task's sums", "[task]") {
  Subject s;
  const auto b = s.copies->eval_batch(Split::kValidation, 0, 10);
  for (const Task* task : {&prediction_task(), static_cast<const Task*>(&s.task)}) {
    const auto logits = logits_of(*s.whole, b.ids).to(at::kFloat);
    const auto each = task->per_target(logits, b);
    CHECK(each.sizes() == at::IntArrayRef{std::ssize(task->metrics()), 10, 12});
    const auto sums = task->sums(logits, b);
    CHECK(sums.scalar_type() == at::kDouble);
    CHECK(relative_difference(each.to(at::kDouble).sum({1, 2}), sums) < 1e-6);
    CHECK(task->is_scored(b).sum().equal(task->scored(b)));
    CHECK(task->scored(b).item<int64_t>() < b.targets.numel());
    CHECK(each.masked_select(task->is_scored(b).logical_not()).count_nonzero().item<int64_t>() ==
          0);
  }
}

TEST_CASE("the change of every metric is that between two evaluations", "[pruning]") {
  Subject s;
  const Sample sample{&s.data, Split::kValidation, 4};
  const auto effect = measure_effect(*s.whole, *s.changed, *s.changed, sample, {at::kCPU});
  const auto before = evaluate(*s.whole, sample, {at::kCPU}),
             after = evaluate(*s.changed, sample, {at::kCPU});
  for (const auto& metric : s.task.metrics()) {
    INFO(metric.name);
    const double apart = after.mean(metric.name) - before.mean(metric.name);
    CHECK(std::abs(apart) > 1e-3);
    CHECK(effect.changes.at(metric.name + "_delta") == Approx(apart).epsilon(1e-9));
  }
  CHECK(effect.changes.count("loss_delta") + effect.changes.count("accuracy_delta") == 0);
  auto names = names_of(output_change_variables(s.task));
  std::sort(names.begin(), names.end());
  std::vector<std::string> measured;
  for (const auto& [name, value] : effect.changes) measured.push_back(name);
  CHECK(names == measured);
}

TEST_CASE("reports of an ablation have the metrics of the task", "[ablation]") {
  Subject s;
  OpenedRun run;
  run.model = s.whole;
  run.data = std::shared_ptr<DataSource>(&s.data, [](auto*) {});
  std::vector<AblationStudy> studies{study_of_heads(*s.whole)};
  run_studies(studies, {"zero"}, *run.model, {run.data.get(), Split::kValidation, 5, 1},
              {at::kCPU});
  const auto json = studies_json(studies, {"zero"}, s.task);
  const auto text = studies_text(studies, {"zero"}, s.task, false);
  const auto groups = studies_groups(studies, {"zero"}, *s.whole, s.task, Evaluation{});
  for (const auto& metric : s.task.metrics()) {
    CHECK(json.at(metric.name + "_delta").size() == 6);
    CHECK_THAT(text, Catch::Contains(" " + metric.name + " "));
    CHECK(std::any_of(groups.front().arrays.begin(), groups.front().arrays.end(),
                      [&](const auto& a) { return a.about.name == metric.name + "_delta"; }));
  }
  // Five examples have no p, and their number is said beside it.
  CHECK(json.at("p_examples") == nlohmann::ordered_json(std::vector<int>(6, 5)));
  CHECK(nlohmann::ordered_json::parse(json.dump()).at("p_holm")[0].is_null());
  CHECK_THAT(text, Catch::Contains("  -         5\n"));
  const auto& arrays = groups.front().arrays;
  const auto array = [&](const std::string& name) {
    return *std::find_if(arrays.begin(), arrays.end(),
                         [&](const auto& a) { return a.about.name == name; });
  };
  CHECK(array("p_holm").about.comment.starts_with(significance_legend(s.task)));
  CHECK(array("p_holm").count_attributes.at("rows_of_table") == 6);
  CHECK(array("p_examples").about.counts);
  CHECK(array("surprise_delta_interval").about.units == "nat");
  // The norm of a table's l2 is that of its JSON: over all positions.
  const double l2 = studies.front().by_mode.at("zero")[0].changes.at("l2");
  CHECK_THAT(text, Catch::Contains(fmt::format("  {:.4g}  ", l2)));
}

TEST_CASE("a task may ask one target of each example", "[pruning]") {
  const auto y = random({3, 4, 5}), z = random({3, 4, 5});
  const auto p = random({3, 7}), q = random({3, 7});
  const Batch batch{.targets = at::tensor({6, -1, 2}, at::kLong)};
  OutputChangeSums sums(prediction_task());
  sums.add({y, p}, {z, q}, batch);
  const auto log_p = at::log_softmax(p, -1), log_q = at::log_softmax(q, -1);
  const auto rise = [&](int64_t n, int64_t target) {
    return (log_p - log_q)[n][target].item<double>();
  };
  CHECK(sums.example_loss_changes().size() == 2);
  CHECK(sums.values().at("loss_delta") == Approx((rise(0, 6) + rise(2, 2)) / 2));
  CHECK(sums.values().at("kl") == Approx((log_p.exp() * (log_p - log_q)).sum().item<double>() / 3));
  CHECK(sums.values().at("l2_per_position") == Approx((z - y).norm(2, -1).mean().item<double>()));
}

TEST_CASE("KL is never below 0, and a word that cannot come adds nothing to it", "[pruning]") {
  torch::manual_seed(4);
  const auto y = random({2, 3, 4});
  const Batch batch{.targets = at::ones({2, 3}, at::kLong)};
  const auto kl = [&](const Tensor& p, const Tensor& q) {
    OutputChangeSums sums(prediction_task());
    sums.add({y, p}, {y, q}, batch);
    return sums.values().at("kl");
  };
  const auto p = at::randn({2, 3, 4000});
  CHECK(kl(p, p) == 0);
  for (int n = 0; n < 50; ++n) {  // but for rounding 0
    const double rounding = kl(p, p + 1e-7 * at::randn_like(p));
    CHECK(rounding >= 0);
    CHECK(rounding < 1e-6);
  }
  auto cut = p.clone(), other = at::randn_like(p);
  const auto least = -std::numeric_limits<double>::infinity();
  cut.slice(-1, 0, 100).fill_(least), other.slice(-1, 0, 100).fill_(least);
  CHECK(kl(cut, other) ==
        Approx(kl(p.slice(-1, 100), other.slice(-1, 100))).epsilon(1e-5));  // as if they were not
  CHECK(kl(cut, p) > 0);
  CHECK(std::isinf(kl(p, cut)));
  CHECK(number_text(kl(at::full_like(p, least), p), "{:.4g}") == "-");
}

}  // namespace headlab::test_change_of_outputs
