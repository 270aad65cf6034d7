// What the check before a training finds, and that it leaves no trace. Its kinds leak on
// purpose: no test of a program that goes over all kinds must meet them.
#include <filesystem>

#include "core/errors.h"
#include "core/projected_heads.h"
#include "experiments/files/config_file.h"
#include "experiments/inference/leak_check.h"
#include "experiments/models/stack.h"
#include "experiments/pruning/pruned_run.h"
#include "experiments/training/train.h"
#include "experiments/training/training_state.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/models_testing.h"
#include "tests/scratch.h"

namespace headlab::test_leak_check {
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

// Plain attention that forgets a part of its mask.
struct ForgetfulOptions : MhaOptions {
  std::string forgets = "later";
  double share = 1;
  bool begins_shut = false, in_padded_rows = false;
  void visit(Fields& f) override {
    f("forgets", forgets, "which keys it sees", one_of({"later", "padded", "windowed"}));
    f("share", share, "of the output that sees them");
    f("begins_shut", begins_shut, "the share is a parameter, 0 before training");
    f("in_padded_rows", in_padded_rows, "only rows of padding see them");
  }
};

class Forgetful : public ProjectedHeads<ForgetfulOptions> {
 public:
  Forgetful(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    share_ = parameter("share", at::full({1}, options.begins_shut ? 0 : options.share),
                       shared_by_heads());
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    Scope scope = call;
    if (options_.forgets == "later") scope.mask.causal = false;
    if (options_.forgets == "padded") scope.mask.key_length = Tensor();
    if (options_.forgets == "windowed") scope.mask.window = 0;
    const auto q = queries(x, call), k = keys(x, call), v = values(x, call);
    const auto obeys = attend(q, k, v, call, scale());
    auto forgets = attend(q, k, v, call.within(scope), scale());
    const auto counts = within_length(call.mask.query_length, x.size(1), x.device());  // [B,T]
    if (options_.in_padded_rows)
      forgets =
          counts.defined() ? at::where(counts.unsqueeze(1).unsqueeze(3), obeys, forgets) : obeys;
    return {.y = output(obeys + share_ * (forgets - obeys), call)};
  }
  Tensor share_;
};
const RegisterHeads<Forgetful> forgetful("forgetful", "sees what its mask hides");

// Leaves traces wherever it goes, also in eval mode.
class Untidy : public ProjectedHeads<MhaOptions> {
 public:
  Untidy(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    calls_ = register_buffer("calls", at::zeros({}));
    lay_out("calls", shared_by_heads());
    scratch_ = parameter("scratch", at::zeros({3}), shared_by_heads());
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    calls_ += 1;
    scratch_.data().fill_(calls_);
    const auto drawn = 1e-3 * at::randn({}, x.options());
    const auto y =
        output(attend(queries(x, call), keys(x, call), values(x, call), call, scale()), call);
    return {.y = is_training() ? y + drawn : y};
  }
  Tensor calls_, scratch_;
};
const RegisterHeads<Untidy> untidy("untidy", "changes what it reads");

// A causal decoder whose first layer is given the mean of all tokens, later ones too.
class Peeking : public Model {
 public:
  struct Options : StackOptions {
    HeadDemands demands(int64_t layer) const override {
      auto demands = StackOptions::demands(layer);
      demands.causal = true;
      return demands;
    }
  };
  Peeking(const Options& options, const DataShape& data) : context_(data.context) {
    auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    token_ = embedding_table(*embed, "token", data.vocabulary, options.d_model, 0.02);
    stack_ = &add_stack(*embed, options, {}, context_);
  }
  int64_t context() const override { return context_; }
  double flops_per_token() const override { return 0; }

 private:
  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    const auto embed = [&](int64_t past) {
      const auto x = at::embedding(token_, batch.ids);
      return stack_->at_places(x + x.mean(1, true), past);
    };
    return project(stack_->forward(embed, {.batch = batch, .causal = true}, ctx, aux), token_);
  }
  int64_t context_;
  Tensor token_;
  Stack* stack_ = nullptr;
};
const RegisterModel<Peeking> peeking("peeking", "looks ahead outside of its layers");

std::vector<std::string> honest_kinds() {
  return {build::kVariantStems.begin(), build::kVariantStems.end()};
}

// A model of its kind and options, as fresh as one that is about to be trained.
struct Subject {
  std::shared_ptr<ModelOptions> options;
  DataShape data;
  std::shared_ptr<Model> model;

  Subject(const std::string& kind, const std::string& yaml, const DataShape& shape)
      : options(std::dynamic_pointer_cast<ModelOptions>(model_kind(kind).options())), data(shape) {
    read_config(*options, parse_config(yaml, "test"));
    torch::manual_seed(3);
    model = model_kind(kind).make(*options, data);
  }
  void check() const { check_leaks(*model, *options, data, {at::kCPU}); }
};

Subject decoder(const std::string& attention, const std::string& more = "", int64_t context = 24) {
  return {"decoder",
          "{layers: 2, d_model: 16, heads: 4, attention: " + attention + ", " + more + "}",
          {.vocabulary = 11, .context = context}};
}

Subject translator(const std::string& encoder, const std::string& decoder,
                   const std::string& cross) {
  const auto side = [](const std::string& kind) {
    return "{layers: 2, d_model: 16, heads: 4, attention: " + kind;
  };
  return {
      "translator",
      "{encoder: " + side(encoder) + "}, decoder: " + side(decoder) + ", cross: " + cross + "}}",
      {.vocabulary = 11, .context = 12, .source_vocabulary = 7, .source_context = 9}};
}

const std::string kForgetful = "{kind: forgetful, forgets: ";

}  // namespace

TEST_CASE("a layer that sees later keys is named with the position and the amount", "[leaks]") {
  const auto subject = decoder("mha", "attention_at: {\"1\": " + kForgetful + "later}}");
  REQUIRE_THROWS_AS(subject.check(), LeakError);
  REQUIRE_THROWS_WITH(subject.check(),
                      Contains("attention kind 'forgetful' leaks: in layer 1 of 'self'") &&
                          Contains("the output at position ") && Contains(" moves by ") &&
                          Contains("when the state at position ") &&
                          Contains("changes, which comes later"));
}

TEST_CASE("a faint leak is found, and one that only training opens", "[leaks]") {
  for (const std::string way : {"later, share: 1.0e-5}", "later, begins_shut: true}"}) {
    INFO(way);
    REQUIRE_THROWS_AS(decoder(kForgetful + way).check(), LeakError);
  }
}

TEST_CASE("a layer that sees beyond its window is found, however long the window", "[leaks]") {
  // 23: one pair is outside; 24 and more hide nothing in 24 tokens.
  for (const std::string window : {"1", "8", "23", "24", "1000"}) {
    INFO(window);
    const auto more = "window: [" + window + "]";
    REQUIRE_THROWS_WITH(decoder(kForgetful + "windowed}", more).check(),
                        Contains("which is outside the window of "));
    REQUIRE_NOTHROW(decoder("mha", more).check());
  }
  REQUIRE_THROWS_WITH(decoder(kForgetful + "windowed}", "causal: false, window: [4]").check(),
                      Contains("which is outside the window of 4"));
}

TEST_CASE("a row that is made of rows before it may see through their windows", "[leaks]") {
  for (const std::string more : {"window: [4]", "window: [22]", "causal: false, window: [4]"}) {
    INFO(more);
    REQUIRE_NOTHROW(decoder("{kind: mta, pre_kernel: [3, 5], post_kernel: [2, 3]}", more).check());
  }
}

TEST_CASE("a layer that sees padded keys is found in every site that has them", "[leaks]") {
  const auto leaks = kForgetful + "padded}";
  REQUIRE_THROWS_WITH(decoder(leaks, "causal: false").check(), Contains("which is padding"));
  REQUIRE_THROWS_WITH(translator(leaks, "mha", "mha").check(),
                      Contains("of 'encoder_self'") && Contains("which is padding"));
  REQUIRE_THROWS_WITH(translator("mha", "mha", leaks).check(), Contains("kind 'forgetful'") &&
                                                                   Contains("of 'cross'") &&
                                                                   Contains("which is padding"));
  REQUIRE_THROWS_WITH(translator("mha", kForgetful + "later}", "mha").check(),
                      Contains("of 'decoder_self'") && Contains("which comes later"));
}

TEST_CASE("rows of padding, which do not count, may see what they like", "[leaks]") {
  for (const std::string keys : {"padded", "later"})
    REQUIRE_NOTHROW(decoder(kForgetful + keys + ", in_padded_rows: true}",
                            keys == "padded" ? "causal: false" : "")
                        .check());
}

TEST_CASE("a model that leaks beside its layers is found by its last token", "[leaks]") {
  const Subject subject{
      "peeking", "{layers: 1, d_model: 16, heads: 4}", {.vocabulary = 11, .context = 24}};
  REQUIRE_THROWS_AS(subject.check(), LeakError);
  REQUIRE_THROWS_WITH(subject.check(), Contains("the model leaks, though none of its attention "
                                                "layers does: the logits at position ") &&
                                           Contains("the last token changes, at position 23"));
}

TEST_CASE("every kind passes, in every site and scope that its traits promise", "[leaks]") {
  for (const auto& kind : honest_kinds()) DYNAMIC_SECTION(kind) {
      const auto traits = head_kind(kind).options()->traits();
      for (const int64_t context : {1, 2, 24}) {
        if (traits.bidirectional) REQUIRE_NOTHROW(decoder(kind, "causal: false", context).check());
        if (!traits.causal) continue;
        REQUIRE_NOTHROW(decoder(kind, "", context).check());
        for (const std::string position : {"alibi", "relative", "rope"})
          if (traits.rotary && traits.windows && traits.biases &&
              (context == 24 || position == "rope"))
            REQUIRE_NOTHROW(
                decoder(kind, "window: [5, 0], position: " + position, context).check());
      }
      const std::string cross = traits.cross ? kind : "mha";
      if (traits.bidirectional) REQUIRE_NOTHROW(translator(kind, "mha", cross).check());
      if (traits.causal) REQUIRE_NOTHROW(translator("mha", kind, cross).check());
    }
}

TEST_CASE("rows that are computed together with others pass in every way to choose them",
          "[leaks]") {
  for (const std::string options : {"compute: sparse", "router: query_norm, compute: sparse"})
    for (const int64_t context : {24, 200}) {
      const auto kind = "{kind: moh, " + options + "}";
      REQUIRE_NOTHROW(decoder(kind, "window: [0, 7]", context).check());
      REQUIRE_NOTHROW(translator(kind, "mha", kind).check());
    }
  for (const std::string kind :
       {"{kind: bigbird, block: 4, global_blocks: 1, random_blocks: 1}",
        "{kind: gated, gate: sigmoid, inner: {kind: moh, compute: sparse}}"})
    REQUIRE_NOTHROW(decoder(kind, "", 64).check());
}

TEST_CASE("heads that are pruned or sliced away pass as the others do", "[leaks]") {
  for (const auto& kind : honest_kinds()) DYNAMIC_SECTION(kind) {
      const bool causal = head_kind(kind).options()->traits().causal;
      const auto subject = decoder(kind, causal ? "" : "causal: false");
      remove_heads(*subject.model, {{0, 1}, {0, 3}, {1, 0}});
      REQUIRE_NOTHROW(subject.check());
      slice_heads(*subject.model);
      REQUIRE_NOTHROW(subject.check());
    }
}

namespace {

// Of all those that are `stride` apart.
void require_configs_pass(size_t stride) {
  std::vector<fs::path> configs;
  for (const auto& file : fs::directory_iterator(fs::path(build::kSourceDir) / "configs"))
    if (file.path().extension() == ".yaml") configs.push_back(file.path());
  REQUIRE(configs.size() > stride);
  std::sort(configs.begin(), configs.end());
  for (size_t n = 0; n < configs.size(); n += stride) {
    INFO(configs[n]);
    Experiment experiment;
    read_config(experiment, load_config(configs[n]));
    std::shared_ptr<DataSource> data;
    try {
      data = open_data(experiment.data);
    } catch (const DataError& error) {
      REQUIRE_THAT(error.what(), Catch::Contains("scripts/data"));
      testing::skip(error.what());
      continue;
    }
    auto model = build_model(experiment, data->shape(), at::kCPU);
    REQUIRE_NOTHROW(
        check_leaks(*model, experiment.model.as<ModelOptions>(), data->shape(), {at::kCPU}));
  }
}

}  // namespace

TEST_CASE("configs of configs/ pass", "[leaks]") { require_configs_pass(5); }

TEST_CASE("every config in configs/ passes", "[leaks][.slow]") { require_configs_pass(1); }

namespace {

std::vector<Tensor> state_of(Model& model) {
  std::vector<Tensor> state;
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (const auto& t : tensors) {
      state.push_back(t.detach().clone());
      state.push_back(t.grad().defined() ? t.grad().clone() : Tensor());
    }
  state.push_back(at::detail::getDefaultCPUGenerator().get_state());
  for (const auto& module : model.modules())
    state.push_back(at::scalar_tensor(module->is_training(), at::kBool));
  return state;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || at::equal(x, y));
  });
}

Experiment small_run(const std::string& kind) {
  Experiment experiment;
  const bool causal = head_kind(kind).options()->traits().causal;
  read_config(experiment,
              parse_config(
                  "name: small\ndata: {kind: " + std::string(causal ? "induction" : "first_token") +
                      ", symbols: 16, context: 16}\n"
                      "model: {layers: 2, d_model: 16, heads: 4, dropout: 0.1,\n"
                      "        causal: " +
                      std::string(causal ? "true" : "false") + ", attention: " + kind +
                      "}\n"
                      "train: {steps: 4, batch: 4, warmup: 2}\n",
                  "test"));
  return experiment;
}

// Everything that is left of the model after a few updates.
std::vector<Tensor> trained(const std::string& kind, bool checked) {
  const auto experiment = small_run(kind);
  const auto data = open_data(experiment.data);
  auto model = build_model(experiment, data->shape(), at::kCPU);
  torch::manual_seed(9);
  if (checked) check_leaks(*model, experiment.model.as<ModelOptions>(), data->shape(), {at::kCPU});
  TrainingState state;
  train_further(experiment, model, *data, {at::kCPU}, state, std::nullopt, nullptr);
  return state_of(*model);
}

}  // namespace

TEST_CASE("the check leaves a model and the random generator as they were", "[leaks]") {
  for (const std::string kind : {"untidy", "gated", "{kind: reattention, norm: batch}"})
    for (const bool training : {true, false}) {
      INFO(kind);
      const auto subject = decoder(kind, "dropout: 0.1");
      subject.model->train(training);
      subject.model->children().front()->train(!training);
      subject.model->parameters().front().mutable_grad() =
          at::ones_like(subject.model->parameters().front());
      const auto before = state_of(*subject.model);
      subject.check();
      REQUIRE(same_bits(before, state_of(*subject.model)));
    }
  const auto leaks = decoder(kForgetful + "later}");
  const auto before = state_of(*leaks.model);
  REQUIRE_THROWS_AS(leaks.check(), LeakError);
  REQUIRE(same_bits(before, state_of(*leaks.model)));
}

// Those that draw, choose, or keep what they have seen; the others beside these at night.
TEST_CASE("a training that was checked before is the same training bit for bit", "[leaks]") {
  for (const std::string kind : {"untidy", "gated", "switchhead", "reattention"})
    REQUIRE(same_bits(trained(kind, false), trained(kind, true)));
}

TEST_CASE("a training of any kind that was checked before is the same bit for bit", "[.slow]") {
  for (const auto& kind : honest_kinds()) DYNAMIC_SECTION(kind) {
      REQUIRE(same_bits(trained(kind, false), trained(kind, true)));
    }
}

TEST_CASE("pruning with updates checks before it begins and leaves no run behind", "[leaks]") {
  const Scratch folder;
  OpenedRun run;
  run.experiment = small_run("forgetful");
  run.data = open_data(run.experiment.data);
  run.data_description = describe_data(*run.data);
  run.model = build_model(run.experiment, run.data->shape(), at::kCPU);
  PruneSettings settings;
  settings.count = 1;
  settings.judging.batch = settings.judging.most = 1;
  const auto prune = [&](int64_t updates) {
    settings.tune = updates;
    return prune_run(folder.path().string(), run, settings, 1, false,
                     updates > 0 ? folder / "out" : fs::path(), {at::kCPU});
  };
  REQUIRE_THROWS_AS(prune(1), LeakError);
  REQUIRE_FALSE(fs::exists(folder / "out"));
  REQUIRE_NOTHROW(prune(0));
}

}  // namespace headlab::test_leak_check
