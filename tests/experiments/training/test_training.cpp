// Whole trainings, small: resuming is exact, diverging stops, induction heads form.
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/files/h5.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/training/recorder.h"
#include "experiments/training/training_state.h"
#include "headlab_build.h"
#include "tests/checkpoint_testing.h"
#include "tests/scratch.h"
#include "tests/training_testing.h"

namespace headlab::test_training {
namespace {

using namespace training_testing;
using testing::load_checkpoint;

// `config`: of small(), with more settings of `train`.
void require_exact_resumption(const std::function<std::string(const std::string&)>& config) {
  const Scratch folder;
  const auto whole = run_in(folder / "whole", experiment_of(config("")));
  REQUIRE(whole.exit_code == kDone);
  // max_time stops after the first step; each resume does one more.
  auto interrupted = experiment_of(config(", max_time: 1e-9"));
  REQUIRE(run_in(folder / "parts", interrupted).exit_code == kResumable);
  for (int n = 0; n < 2; ++n)
    REQUIRE(run_in(folder / "parts", interrupted, true).exit_code == kResumable);
  const auto last = run_in(folder / "parts", experiment_of(config("")), true);
  REQUIRE(last.exit_code == kDone);
  REQUIRE(last.status.step == 6);
  const auto a = load_checkpoint(folder / "whole/ckpt/last"),
             b = load_checkpoint(folder / "parts/ckpt/last");
  require_same_tensors(a.model, b.model);
  require_same_tensors(a.optimizer.value(), b.optimizer.value());
  REQUIRE(metrics_of(folder / "whole") == metrics_of(folder / "parts"));
}

std::string with_attention(std::string config, const std::string& attention) {
  const std::string plain = "attention: {kind: gated}";
  return config.replace(config.find(plain), plain.size(), "attention: " + attention);
}

}  // namespace

// Kinds that draw or keep what they have seen; the others beside these at night.
TEST_CASE("a run that was stopped and resumed equals one that never was", "[training]") {
  for (const std::string kind : {"{kind: moh}", "{kind: reattention, norm: batch}"})
    DYNAMIC_SECTION(kind) {
      require_exact_resumption(
          [&](const std::string& train) { return with_attention(small("gated", train), kind); });
    }
}

TEST_CASE("a run of any kind that was stopped and resumed equals one that never was",
          "[training][.slow]") {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      require_exact_resumption([&](const std::string& train) { return small(kind, train); });
    }
}

TEST_CASE("multipliers of a target for gates resume with their moments", "[training]") {
  for (const std::string more : {"", ", gates_only: true"})
    require_exact_resumption([&](const std::string& train) {
      return with_attention(small("gated", more + train),
                            "{kind: gated, target: {sparsity: 0.5, scope: layer}}");
    });
}

TEST_CASE("the manifest names the CUDA runtime and the GPU of a device, and nothing of a CPU") {
  CHECK(cuda_version(at::kCPU).empty());
  CHECK(gpu_names(at::kCPU).empty());
  const at::Device second(at::kCUDA, 1);
  CHECK((cuda_version(second) == "unknown") == !at::hasCUDA());
  REQUIRE(gpu_names(second).size() == 1);
  if (!at::hasCUDA()) CHECK(gpu_names(second)[0] == "cuda:1");
}

TEST_CASE("on a GPU a step looks at its loss where something is due, on a CPU always") {
  CHECK(reads_loss(at::kCPU, false));
  CHECK_FALSE(reads_loss(at::Device(at::kCUDA, 0), false));
  CHECK(reads_loss(at::Device(at::kCUDA, 0), true));
}

TEST_CASE("what gates decide is logged with the weights before the update", "[training]") {
  const Scratch folder;
  const auto config = with_attention(small("gated", ", gate_lr: 0.5"),
                                     "{kind: gated, init: 2.6, target: {heads: 3}}");
  run_in(folder / "run", experiment_of(config));
  const auto rows = read_metrics(folder / "run/metrics.jsonl");
  REQUIRE(rows.size() == 7);
  for (const auto& row : rows) {
    REQUIRE(row.values.count("gates/alive") == 1);
    REQUIRE(row.values.count("aux/gate_target") == 1);
  }
  const auto value = [&](size_t row, const std::string& name) {
    return rows.at(row).values.at("gates/" + name);
  };
  for (const size_t row : {0, 1}) {  // nothing has changed yet
    CHECK(value(row, "alive") == 8);
    CHECK(value(row, "undecided") == 0);
    CHECK(value(row, "expected") == value(0, "expected"));
  }
  CHECK(value(0, "expected") ==
        Approx(8 / (1 + std::exp(-2.6 + 0.33 * std::log(1 / 11.)))).epsilon(0.01));
  CHECK(value(6, "expected") < value(0, "expected"));

  const H5File log = H5File::open(folder / "run/log.h5");
  for (const std::string name : {"undecided", "alive", "expected"}) {
    const auto logged = log.root().dataset("scalars/gates_" + name).read<float>();
    REQUIRE(logged.size() == 7);
    for (size_t row = 0; row < 7; ++row) CHECK(logged[row] == static_cast<float>(value(row, name)));
  }
}

TEST_CASE("experts are logged by layer, head and expert, and those that a layer lacks are missing",
          "[training]") {
  const Scratch folder;
  const auto config = with_attention(
      small("gated"),
      "{kind: switchhead, experts: 3, active: 1}, attention_at: {\"1\": {experts: 2}}");
  run_in(folder / "run", experiment_of(config));
  const H5File log = H5File::open(folder / "run/log.h5");
  const auto group = log.root().group("heads/self");
  for (const std::string name : {"value_selected", "output_selected", "value_probability"}) {
    INFO(name);
    const auto extent = group.dataset(name).extent();  // step, layer, head, expert
    REQUIRE(extent == H5Extent{4, 2, 4, 3});
    const auto values = group.dataset(name).read<float>();
    for (size_t first = 0; first < values.size(); first += 3) {
      const size_t experts = first / 12 % 2 == 0 ? 3 : 2;
      float sum = 0;
      for (size_t e = 0; e < 3; ++e) {
        REQUIRE(std::isnan(values[first + e]) == (e >= experts));
        if (e < experts) sum += values[first + e];
      }
      if (name.ends_with("selected")) REQUIRE(sum == Approx(1));  // each token has one
    }
  }
}

TEST_CASE("what is due is due at its own interval, and nothing is where that is 0", "[training]") {
  auto experiment = experiment_of(small("mha", ", checkpoint: {every: 0}"));
  const auto steps_of = [&](bool Due::*what) {
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= 6; ++step)
      if (due_after(experiment, step).*what) steps.push_back(step);
    return steps;
  };
  using Steps = std::vector<int64_t>;
  CHECK(steps_of(&Due::row) == Steps{1, 2, 3, 4, 5, 6});
  CHECK(steps_of(&Due::statistics) == Steps{2, 4, 6});
  CHECK(steps_of(&Due::maps) == Steps{3, 6});
  CHECK(steps_of(&Due::evaluation) == Steps{2, 4, 6});
  CHECK(steps_of(&Due::checkpoint).empty());
  experiment.train.checkpoint.every = 5;
  CHECK(steps_of(&Due::checkpoint) == Steps{5});
}

TEST_CASE("a process without a recorder trains the same model and writes nothing", "[training]") {
  const Scratch folder, empty;
  const struct InDirectory {
    fs::path before = fs::current_path();
    explicit InDirectory(const fs::path& path) { fs::current_path(path); }
    ~InDirectory() { fs::current_path(before); }
  } in_empty(empty.path());
  const auto experiment =
      experiment_of(small("moh", ", early_stop: {patience: 1, min_delta: 100}"));
  const fs::path run = folder / "run";
  const auto recorded = run_in(run, experiment);
  const auto data = open_data(experiment.data);
  auto model = build_model(experiment, data->shape(), at::kCPU);
  TrainingState state;
  const auto alone =
      train_further(experiment, model, *data, {at::kCPU}, state, std::nullopt, nullptr);
  CHECK(alone.exit_code == kDone);
  CHECK(alone.status.step == recorded.status.step);
  CHECK(state.step == 4);
  CHECK(state.tokens == state.step * 4 * 16);
  CHECK(alone.status.reason == recorded.status.reason);
  CHECK(alone.status.metrics.empty());
  require_same_tensors(module_tensors(*model), load_checkpoint(run / "ckpt/last").model);
  CHECK(fs::is_empty(empty.path()));
}

TEST_CASE("another seed is another run", "[training]") {
  const Scratch folder;
  auto experiment = experiment_of(small("mha"));
  run_in(folder / "a", experiment);
  experiment.seed = 2;
  run_in(folder / "b", experiment);
  const auto a = load_checkpoint(folder / "a/ckpt/last"),
             b = load_checkpoint(folder / "b/ckpt/last");
  REQUIRE_FALSE(at::equal(a.model.at("embed.token.weight"), b.model.at("embed.token.weight")));
}

TEST_CASE("a run that diverges stops, and its last good checkpoint stays", "[training]") {
  const Scratch folder;
  const auto outcome =
      run_in(folder / "run",
             experiment_of(small("mha", ", lr: 1.0e+38, clip: 0, checkpoint: {every: 1}")));
  REQUIRE(outcome.exit_code == kDiverged);
  REQUIRE(outcome.status.state == RunState::kDiverged);
  const auto rows = read_metrics(folder / "run/metrics.jsonl");
  REQUIRE_FALSE(
      std::isfinite(rows.back().values.at("train/loss") + rows.back().values.at("grad_norm")));
  for (const auto& [name, tensor] : load_checkpoint(folder / "run/ckpt/last").model)
    REQUIRE(tensor.isfinite().all().item<bool>());
}

TEST_CASE("early stopping ends a run that no longer gets better", "[training]") {
  const Scratch folder;
  const auto outcome = run_in(
      folder / "run", experiment_of(small("mha", ", early_stop: {patience: 1, min_delta: 100}")));
  REQUIRE(outcome.exit_code == kDone);
  REQUIRE(outcome.status.step == 4);  // the first evaluation is a best one, the second is not
}

TEST_CASE("a better loss over the whole split undoes no early stop", "[training]") {
  // At this rate nothing changes: the second evaluation of one batch is no better than the first,
  // and the whole split is better than that batch for one seed and worse for another.
  for (const int seed : {1, 2}) {
    INFO("seed " << seed);
    const Scratch folder;
    auto experiment = experiment_of(
        small("mha", ", eval_batch: 1, lr: 1.0e-30, weight_decay: 0, early_stop: {patience: 1}"));
    experiment.seed = seed;
    const auto outcome = run_in(folder / "run", experiment);
    REQUIRE(outcome.exit_code == kDone);
    REQUIRE(outcome.status.step == 4);
    REQUIRE(outcome.status.reason == "the validation loss no longer gets better");
  }
}

TEST_CASE("the best step is found by the same examples at every step", "[training]") {
  // At this rate nothing changes, so that the first step stays the best, however much better or
  // worse than its one example the whole split is, which the last step is recorded with.
  for (const int seed : {1, 2, 3, 4}) {
    INFO("seed " << seed);
    const Scratch folder;
    auto experiment = experiment_of(small("mha", ", eval_batch: 1, lr: 1.0e-30, weight_decay: 0"));
    experiment.seed = seed;
    REQUIRE(run_in(folder / "run", experiment).exit_code == kDone);
    CHECK(load_checkpoint(folder / "run/ckpt/best").step == 2);
    const auto rows = read_metrics(folder / "run/metrics.jsonl");
    const auto of_step = [&](int64_t step) -> const Metrics& {
      return std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.step == step; })
          ->values;
    };
    CHECK(TrainingState::of(load_latest(folder / "run").value()).best == of_step(2).at("val/loss"));
    CHECK(of_step(2).at("val/whole_split") == 0);
    CHECK(of_step(2).at("val/examples") == 1);
    CHECK(of_step(6).at("val/whole_split") == 1);
    CHECK(of_step(6).at("val/examples") == 8);
  }
}

TEST_CASE("the status of a run that stops has the numbers of the step that it names",
          "[training]") {
  const Scratch folder;
  auto experiment = experiment_of(small("mha"));
  experiment.log.every = 1;
  REQUIRE(run_in(folder / "every", experiment).exit_code == kDone);
  const auto rows = read_metrics(folder / "every/metrics.jsonl");
  experiment.log.every = 100;
  for (const bool stops : {true, false}) {
    experiment.train.max_time = stops ? std::optional(1e-9) : std::nullopt;
    const auto path = folder / (stops ? "stopped" : "finished");
    const auto outcome = run_in(path, experiment);
    REQUIRE(outcome.status.step == (stops ? 1 : 6));
    const auto& row = rows.at(outcome.status.step).values;
    for (const char* name : {"train/loss", "lr", "grad_norm"})
      CHECK(outcome.status.metrics.at(name) == row.at(name));
    CHECK(outcome.status.metrics.count("val/step") == !stops);
    if (!stops) CHECK(outcome.status.metrics.at("val/step") == 6);
    for (const auto& logged : read_metrics(path / "metrics.jsonl"))  // which has no row more
      CHECK((logged.step == 0 || logged.values.count("train/loss") == 0));
  }
}

TEST_CASE("two layers grow an induction head, one layer cannot", "[training][.slow]") {
  const Scratch folder;
  auto best_score = [&](int layers) {
    const auto experiment = experiment_of(
        "name: induction\n"
        "data: {kind: induction, symbols: 48, context: 48, eval_examples: 32}\n"
        "model: {kind: decoder, layers: " +
        std::to_string(layers) +
        ", d_model: 64, heads: 4}\n"
        "train: {steps: 400, batch: 32, lr: 2.0e-3, warmup: 50, eval_every: 0}\n");
    const auto data = open_data(experiment.data);
    auto model = build_model(experiment, data->shape(), at::kCPU);
    auto directory = RunDirectory::create(folder / std::to_string(layers), "", {});
    train(experiment, model, *data, {at::kCPU}, directory, {});
    HeadProbe probe;
    probe.statistics = probe.matches = true;
    ModelContext ctx;
    ctx.observer = &probe;
    const auto batch = data->eval_batch(Split::kValidation, 0, 32);
    probe.tokens = batch.ids;
    torch::NoGradGuard no_grad;
    model->forward(batch, ctx);
    double best = 0;
    for (const auto& [key, sums] : probe.sums()) {
      const auto scores = probe.values(key).at("induction");
      for (double score : scores) best = std::max(best, score);
    }
    return best;
  };
  const double two = best_score(2), one = best_score(1);
  INFO("two layers " << two << ", one layer " << one);
  REQUIRE(two > 0.5);
  REQUIRE(one < 0.2);
}

}  // namespace headlab::test_training
