// Pruning: which heads go, in which rounds, and what is left; the authors' numbers of it.
#include <csignal>

#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/pruning/prune.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/run_files.h"
#include "experiments/system/exit_codes.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/hand_built.h"
#include "tests/models_testing.h"
#include "tests/sent_signal.h"

namespace headlab::test_prune {
using namespace testing;

namespace {

Judged judged(const fs::path& file) { return judge_case(file, at::kCPU, Backend::kAuto); }

OpenedRun hand_built_run(const Scratch& scratch, const std::string& name = "run",
                         const std::string& size = "symbols: 16, context: 12") {
  write_hand_built_run(scratch / name, "{kind: induction, " + size + ", eval_examples: 24}");
  return open_run_and_data(scratch / name, at::kCPU);
}

std::vector<HeadId> alive_of(Model& model) { return heads_where(alive_heads(model)); }

double apart(Model& a, Model& b, const Tensor& ids) {
  torch::InferenceMode inference;
  return relative_difference(logits_of(a, ids), logits_of(b, ids));
}

// Grouped heads, more of them than model width allows for by default.
const std::string kGrouped = "heads: 6, kv_heads: 3, head_dim: 5, attention: {kind: mha}";

}  // namespace

TEST_CASE("the authors' importance, order, slices and deltas are reproduced", "[golden][pruning]") {
  for (const std::string folder : {"importance", "pruning"}) {
    int cases = 0;
    for (const auto& entry :
         fs::directory_iterator(fs::path(build::kSourceDir) / "tests/golden" / folder)) {
      const auto result = judged(entry.path());
      REQUIRE(!result.verdicts.empty());
      for (const auto& verdict : result.verdicts) {
        INFO(entry.path().string() << "\n" << verdict_line(verdict));
        CHECK(verdict.pass);
      }
      ++cases;
    }
    REQUIRE(cases > 1);
  }
}

TEST_CASE("a changed input fails its pruning case", "[golden][pruning]") {
  const auto golden = fs::path(build::kSourceDir) / "tests/golden";
  const Scratch scratch;
  for (const auto& [file, input] :
       std::vector<std::pair<std::string, std::string>>{{"importance/causal", "w.v.weight"},
                                                        {"pruning/delta", "in.logits_ablated"},
                                                        {"pruning/slice_gqa", "w.k.weight"},
                                                        {"pruning/order_free", "in.importance"}}) {
    std::map<std::string, std::string> metadata;
    auto tensors = read_tensors(golden / (file + ".safetensors"), &metadata);
    tensors.at(input) = tensors.at(input).flip(-1);
    write_tensors(scratch / "changed.safetensors", tensors, metadata);
    INFO(file);
    CHECK_FALSE(all_pass(judged(scratch / "changed.safetensors").verdicts));
    tensors.erase(input);
    write_tensors(scratch / "lacking.safetensors", tensors, metadata);
    CHECK_THROWS_WITH(judged(scratch / "lacking.safetensors"),
                      Catch::Contains(input + " is missing"));
  }
}

TEST_CASE("the lowest heads go first, whatever layer they are in", "[pruning]") {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const auto score = at::tensor({3., 1., 2., none, 1., 5., 0., 4.}, at::kDouble).view({2, 4});
  const auto alive = at::tensor({1, 1, 1, 1, 1, 1, 0, 1}).to(at::kBool).view({2, 4});
  using Heads = std::vector<HeadId>;
  // Equals: the lower layer; a dead head is not asked; one without a score goes last.
  CHECK(lowest_heads({{"self", score}}, {{"self", alive}}, 3, 0) == Heads{{0, 1}, {1, 0}, {0, 2}});
  CHECK(lowest_heads({{"self", score}}, {{"self", alive}}, 0, 0).empty());
  CHECK(lowest_heads({{"self", score}}, {{"self", alive}}, 99, 0).size() == 7);
  CHECK(lowest_heads({{"self", score}}, {{"self", alive}}, 99, 0).back() == HeadId{0, 3});
  // The best two of a layer stay, though there are lower ones elsewhere no longer.
  CHECK(lowest_heads({{"self", score}}, {{"self", alive}}, 99, 2) == Heads{{0, 1}, {1, 0}, {0, 2}});
  CHECK(lowest_heads({{"self", score}}, {{"self", alive}}, 99, 4).empty());
}

TEST_CASE("heads are read as layer:head,head and refused by name", "[pruning]") {
  const auto model = small_decoder("{layers: 2, d_model: 24, heads: 3}");
  using Heads = std::vector<HeadId>;
  CHECK(parse_heads({"1:2,0", "0:1", "1:0"}, *model) == Heads{{0, 1}, {1, 0}, {1, 2}});
  CHECK(parse_heads({}, *model).empty());
  const auto refusal = [&](const std::string& word) {
    return error_of<ConfigError>([&] { parse_heads({word}, *model); });
  };
  for (const std::string malformed :
       {"1", "1:", ":1", "a:1", "1:b", "1:-1", "1:0,", "1:0:2", "1: 0"})
    CHECK_THAT(refusal(malformed), Catch::Contains("layer:head,head"));
  CHECK_THAT(refusal("2:0"), Catch::Contains("no layer 2; the model has layers 0 to 1"));
  CHECK_THAT(refusal("1:3"), Catch::Contains("no head 3; it was built with heads 0 to 2"));
}

TEST_CASE("a circuit survives as long as anything does", "[pruning]") {
  const Scratch scratch;
  for (const std::string by : {"importance", "ablation"}) {
    // Few of the random symbols come twice in a block, where induction cannot tell which is meant.
    auto run = hand_built_run(scratch, by, "symbols: 100, context: 16");
    const PruneSettings settings{
        .heads = {}, .count = 6, .by = by, .rounds = 3, .judging = {.batch = 8, .most = 2}};
    const auto rounds = prune(run, settings, {at::kCPU});
    REQUIRE(rounds.size() == 4);
    for (int64_t n = 0; n < 4; ++n) {
      CHECK(rounds[n].kept == 8 - 2 * n);
      CHECK(rounds[n].evaluation.mean("accuracy") > 0.9);
    }
    CHECK(rounds[3].parameters < rounds[2].parameters);
    CHECK(rounds[3].flops < rounds[2].flops);
    CHECK(alive_of(*run.model) == std::vector<HeadId>{{0, 0}, {1, 0}});
    // One more, and there is nothing left of it.
    auto last = settings;
    last.count = 7, last.rounds = 1;
    CHECK(prune(run, last, {at::kCPU})[1].evaluation.mean("accuracy") < 0.3);
  }
}

TEST_CASE("pruning twice is as once, and goes on from a slice", "[pruning]") {
  const Scratch scratch;
  auto run = hand_built_run(scratch);
  const auto ids = run.data->eval_batch(Split::kValidation, 0, 4).ids;
  PruneSettings settings{.heads = {{0, 2}, {1, 3}}, .judging = {.batch = 8, .most = 1}};
  CHECK(prune(run, settings, {at::kCPU})[1].removed == settings.heads);
  auto sliced = sliced_copy(run, at::kCPU);
  CHECK(apart(*run.model, *sliced, ids) < 1e-5);
  CHECK(prune(run, settings, {at::kCPU})[1].removed.empty());

  run.model = sliced;
  CHECK(prune(run, settings, {at::kCPU})[1].removed.empty());
  settings.heads = {};
  settings.count = 2;  // as many as are gone
  CHECK(prune(run, settings, {at::kCPU})[1].removed.empty());
  settings.count = 5, settings.by = "random", settings.seed = 3;
  const auto rounds = prune(run, settings, {at::kCPU});
  CHECK(rounds[1].removed.size() == 3);
  CHECK(rounds[1].kept == 3);
  CHECK(apart(*run.model, *sliced_copy(run, at::kCPU), ids) < 1e-5);
}

TEST_CASE("the random order is that of its seed", "[pruning]") {
  const Scratch scratch;
  const auto order = [&](uint64_t seed, int64_t rounds) {
    auto run = hand_built_run(scratch, std::to_string(seed) + "-" + std::to_string(rounds));
    const PruneSettings settings{.heads = {},
                                 .count = 4,
                                 .by = "random",
                                 .rounds = rounds,
                                 .judging = {.batch = 8, .most = 1},
                                 .seed = seed};
    prune(run, settings, {at::kCPU});
    return alive_of(*run.model);
  };
  const auto once = order(1, 1);
  CHECK(once == order(1, 4));
  CHECK(once != order(2, 1));
}

TEST_CASE("fine-tuning moves what is left and nothing that is gone", "[pruning]") {
  const Scratch scratch;
  auto run = hand_built_run(scratch);
  const auto before = copy_of(run, at::kCPU);
  const PruneSettings settings{
      .heads = {{0, 2}, {1, 1}}, .tune = 3, .judging = {.batch = 8, .most = 1}};
  const auto rounds = prune(run, settings, {at::kCPU});
  CHECK(run.step == 3);
  CHECK_FALSE(run.model->is_training());
  CHECK(rounds[1].evaluation.loss() != rounds[0].evaluation.loss());
  CHECK(alive_of(*run.model).size() == 6);
  const auto ids = run.data->eval_batch(Split::kValidation, 0, 4).ids;
  CHECK(apart(*run.model, *sliced_copy(run, at::kCPU), ids) < 1e-5);
  CHECK(apart(*run.model, *before, ids) > 1e-3);
}

TEST_CASE("tuning that is kept trains as tuning that is not, and as the settings say",
          "[pruning]") {
  const Scratch scratch;
  const PruneSettings settings{
      .heads = {}, .count = 4, .rounds = 2, .tune = 3, .judging = {.batch = 8, .most = 1}};
  // Weights after pruning a run that has one more setting of `train`, kept where `out` is named.
  const auto pruned = [&](const std::string& name, const std::string& train,
                          const std::string& out) {
    auto run = hand_built_run(scratch, name);
    read_config(run.experiment.train, parse_config(train, "test"));
    Tuning tuning(out.empty() ? fs::path() : scratch / out, settings.tune, settings.rounds,
                  {at::kCPU});
    CHECK(prune(run, settings, {at::kCPU}, &tuning).size() == 3);
    CHECK(run.step == 6);
    CHECK(tuning.kept() == !out.empty());
    CHECK_FALSE(tuning.ended());
    return module_tensors(*run.model);
  };
  const auto equal = [](const NamedTensors& a, const NamedTensors& b) {
    for (const auto& [name, tensor] : a)
      if (!at::equal(tensor, b.at(name))) return false;
    return a.size() == b.size();
  };
  const auto weights = pruned("run", "{}", "");
  CHECK(equal(pruned("kept", "{}", "out"), weights));
  CHECK(names_in(scratch / "out/ckpt") ==
        std::set<std::string>{"best", "last", "step-00000003", "step-00000006"});
  CHECK_FALSE(equal(pruned("half", "{precision: bf16}", ""), weights));
  CHECK_FALSE(equal(pruned("smooth", "{label_smoothing: 0.2}", ""), weights));
  // Early stopping is for runs whose loss is to fall.
  CHECK(equal(pruned("early", "{early_stop: {patience: 1, min_delta: 100}, eval_every: 1}", ""),
              weights));
}

TEST_CASE("tuning whose loss is not finite ends the pruning", "[pruning]") {
  const Scratch scratch;
  auto run = hand_built_run(scratch);
  run.experiment.train.lr = 1e38, run.experiment.train.clip = 0;
  const PruneSettings settings{
      .heads = {}, .count = 4, .rounds = 2, .tune = 3, .judging = {.batch = 8, .most = 1}};
  Tuning tuning(scratch / "out", settings.tune, settings.rounds, {at::kCPU});
  CHECK(prune(run, settings, {at::kCPU}, &tuning).size() == 1);
  REQUIRE(tuning.ended());
  CHECK(tuning.ended()->exit_code == kDiverged);
  CHECK(tuning.round() == 1);
  CHECK(read_status(scratch / "out")->state == RunState::kDiverged);
}

// Data that raise a signal when the batch of an update is asked for; or, after that update, the
// first batch of `measured` examples.
class Raising : public DataSource {
 public:
  Raising(std::shared_ptr<DataSource> data, int64_t step, int signal, int64_t measured = 0)
      : data_(std::move(data)), step_(step), signal_(signal), measured_(measured) {}
  int64_t vocabulary() const override { return data_->vocabulary(); }
  int64_t context() const override { return data_->context(); }
  Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const override {
    behind_ = step;
    if (step == step_ && measured_ == 0) send_and_wait(signal_);
    return data_->train_batch(seed, step, first, count);
  }
  int64_t examples(Split split) const override { return data_->examples(split); }
  Batch eval_batch(Split split, int64_t first, int64_t count) const override {
    if (behind_ == step_ && first == 0 && count == measured_ && !raised_) {
      raised_ = true;
      send_and_wait(signal_);
    }
    return data_->eval_batch(split, first, count);
  }

 private:
  std::shared_ptr<DataSource> data_;
  int64_t step_;
  int signal_;
  int64_t measured_;
  mutable int64_t behind_ = -1;
  mutable bool raised_ = false;
};

TEST_CASE("a signal stops the pruning, also in the last update of a round", "[pruning]") {
  const Scratch scratch;
  const PruneSettings settings{
      .heads = {}, .count = 4, .rounds = 2, .tune = 3, .judging = {.batch = 8, .most = 1}};
  for (const int64_t step : {2, 4}) {
    const std::string name = "step" + std::to_string(step);
    INFO(name);
    auto run = hand_built_run(scratch, name);
    run.data = std::make_shared<Raising>(run.data, step, SIGUSR1);
    const auto out = scratch / (name + "-pruned");
    Tuning tuning(out, settings.tune, settings.rounds, {at::kCPU});
    const auto rounds = prune(run, settings, {at::kCPU}, &tuning);
    CHECK(run.step == step + 1);
    REQUIRE(tuning.ended());
    CHECK(tuning.ended()->exit_code == kResumable);
    CHECK(tuning.round() == step / 3 + 1);
    CHECK(tuning.updates_left() == 2 - step % 3);
    CHECK(rounds.size() == static_cast<size_t>(tuning.round()));
    const auto status = read_status(out);
    CHECK(status->state == RunState::kStopped);
    CHECK(status->step == step + 1);
    CHECK(load_latest(out)->step == step + 1);
  }
}

TEST_CASE("a signal between two rounds stops the pruning there", "[pruning]") {
  const Scratch scratch;
  const PruneSettings settings{.heads = {},
                               .count = 4,
                               .by = "activation",
                               .recompute = true,
                               .rounds = 2,
                               .tune = 3,
                               .judging = {.batch = 7, .most = 1}};
  for (const int64_t step : {2, 5}) {
    const std::string name = "step" + std::to_string(step);
    INFO(name);
    auto run = hand_built_run(scratch, name);
    run.data = std::make_shared<Raising>(run.data, step, SIGUSR1, settings.judging.batch);
    const auto out = scratch / (name + "-pruned");
    Tuning tuning(out, settings.tune, settings.rounds, {at::kCPU});
    const auto rounds = prune(run, settings, {at::kCPU}, &tuning);
    CHECK(run.step == step + 1);
    CHECK(tuning.stopped());
    REQUIRE(tuning.ended());
    CHECK(tuning.ended()->exit_code == kResumable);
    CHECK(tuning.updates_left() == 0);
    CHECK(rounds.size() == (step == 2 ? 2 : 3));
    CHECK(std::ssize(alive_of(*run.model)) == rounds.back().kept);
    CHECK(read_status(out)->state == RunState::kStopped);
    CHECK(load_latest(out)->step == step + 1);
  }
}

TEST_CASE("tuning that an error ends leaves a run that says so", "[pruning]") {
  const Scratch scratch;
  auto run = hand_built_run(scratch);
  Tuning tuning(scratch / "out", 1, 2, {at::kCPU});
  tuning.fail("nothing is there yet");
  CHECK_FALSE(fs::exists(scratch / "out"));
  REQUIRE(tuning.train(run));
  CHECK(find_run(scratch / "out").kind == FoundRun::Kind::kRunning);
  tuning.fail("no more heads");
  CHECK(read_status(scratch / "out")->state == RunState::kFailed);
  CHECK(read_status(scratch / "out")->reason == "no more heads");
}

TEST_CASE("sliced equals masked in a model of every kind, down to layers without heads",
          "[pruning]") {
  at::NoGradGuard no_grad;
  std::vector<std::string> models{kGrouped};
  for (const auto& kind : head_names()) {
    const bool causal = head_kind(kind).options()->traits().causal;
    models.push_back("heads: 4, attention: {kind: " + kind + "}" +
                     (causal ? "" : ", causal: false"));
  }
  const auto ids = at::randint(0, 29, {2, 12});
  for (const auto& options : models) DYNAMIC_SECTION(options) {
      const auto model = small_decoder("{layers: 2, d_model: 24, " + options + "}");
      const auto whole = logits_of(*model, ids);
      const double flops = model->flops_per_token();
      remove_heads(*model, {{0, 1}, {0, 3}, {1, 0}});
      const auto masked = logits_of(*model, ids);
      CHECK(difference(masked, whole) > 1e-6);
      slice_heads(*model);
      CHECK(difference(logits_of(*model, ids), masked) < 1e-10);
      CHECK(model->flops_per_token() < flops);
      // All that a layer has, and once more.
      const auto rest = alive_of(*model);
      std::vector<HeadId> first;
      for (const auto& id : rest)
        if (id.layer == 0) first.push_back(id);
      for (int64_t n = 0; n < 2; ++n) {
        remove_heads(*model, first);
        const auto bare = logits_of(*model, ids);
        slice_heads(*model);
        CHECK(difference(logits_of(*model, ids), bare) < 1e-10);
        CHECK(bare.isfinite().all().item<bool>());
      }
      CHECK(alive_of(*model).size() == rest.size() - first.size());
    }
}

}  // namespace headlab::test_prune
