// Whoever runs a model does so on the path of attention that it was asked for.
#include <map>
#include <set>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/analysis.h"
#include "experiments/conversion/convert_model.h"
#include "experiments/inference/generate.h"
#include "experiments/pruning/prune.h"
#include "tests/catch.h"

namespace headlab::test_backends {
namespace {

// Notes which path each call asks for, and leaves the work to the heads themselves.
class Watched : public AttentionHeads {
 public:
  Watched(std::shared_ptr<AttentionHeads> heads, std::multiset<Backend>& asked)
      : AttentionHeads(heads->shape(), heads->traits()), heads_(std::move(heads)), asked_(asked) {}

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    asked_.insert(call.backend);
    return heads_->forward(x, call);
  }

  std::shared_ptr<AttentionHeads> heads_;
  std::multiset<Backend>& asked_;
};

OpenedRun run_of(const std::string& kind) {
  OpenedRun run;
  read_config(
      run.experiment,
      parse_config("name: watched\n"
                   "data: {kind: induction, symbols: 29, context: 12, eval_examples: 10}\n"
                   "model: {kind: decoder, layers: 2, d_model: 24, heads: 3, attention: "
                   "{kind: " +
                       kind +
                       "}}\n"
                       "train: {steps: 2, batch: 4, warmup: 1, eval_batch: 5, eval_every: 1, "
                       "eval_batches: 1, early_stop: {patience: 5}}\n",
                   "test"));
  run.data = open_data(run.experiment.data);
  run.data_description = describe_data(*run.data);
  run.model = build_model(run.experiment, run.data->shape(), at::kCPU);
  run.model->eval();
  return run;
}

void watch(Model& model, std::multiset<Backend>& asked) {
  for (const auto& site : model.sites())
    for (size_t l = 0; l < site.layers.size(); ++l)
      model.exchange(site.name, static_cast<int64_t>(l),
                     std::make_shared<Watched>(*site.layers[l], asked));
}

Sample sample_of(const OpenedRun& run) { return {run.data.get(), Split::kValidation, 5, 1}; }

void analyze(OpenedRun& run, const Compute& compute, const std::string& name) {
  analyze_run(run, {.batches = 1, .batch = 5, .names = {name}}, compute);
}

void sample(OpenedRun& run, const Compute& compute, bool cache) {
  generate(*run.model, {1, 2}, {.tokens = 2, .cache = cache}, compute, [](int64_t) {});
}

const std::string kCached = "sampling with a cache";

using Work = std::function<void(OpenedRun& run, const Compute& compute)>;

const std::map<std::string, Work>& works() {
  static const std::map<std::string, Work> all{
      {"evaluation",
       [](auto& run, const auto& compute) { evaluate(*run.model, sample_of(run), compute); }},
      {"ablation",
       [](auto& run, const auto& compute) {
         ablate(*run.model, sample_of(run), {{{0, 1}}}, AblationMode::kMean, compute);
       }},
      {"importance",
       [](auto& run, const auto& compute) {
         measure_importance(*run.model, sample_of(run), compute);
       }},
      {"comparison of models",
       [](auto& run, const auto& compute) {
         compare_models(*run.model, *run_of("mha").model, sample_of(run), compute);
       }},
      {"effect of pruning",
       [](auto& run, const auto& compute) {
         measure_effect(*run.model, *run.model, *run.model, sample_of(run), compute);
       }},
      {"speed",
       [](auto& run, const auto& compute) {
         compare_speed(*run.model, *run.model, run.data->eval_batch(Split::kValidation, 0, 5), 1,
                       compute.backend);
       }},
      {"training",
       [](auto& run, const auto& compute) {
         TrainingState state;
         train_further(run.experiment, run.model, *run.data, compute, state, {}, nullptr);
       }},
      {kCached, [](auto& run, const auto& compute) { sample(run, compute, true); }},
      {"sampling", [](auto& run, const auto& compute) { sample(run, compute, false); }},
      {"analysis", [](auto& run, const auto& compute) { analyze(run, compute, "entropy"); }},
      {"analysis of importance",
       [](auto& run, const auto& compute) { analyze(run, compute, "importance"); }},
      {"repeated tokens",
       [](auto& run, const auto& compute) { analyze(run, compute, "induction_repeated"); }}};
  return all;
}

}  // namespace

TEST_CASE("every pass over a model takes the path of attention that is asked for", "[backends]") {
  for (const auto& [name, work] : works())
    for (const auto backend : {Backend::kAuto, Backend::kEager, Backend::kSdpa}) {
      if (name == kCached) continue;  // which counts the calls of a layer within a layer twice
      INFO(name);
      auto run = run_of("mha");
      std::multiset<Backend> asked;
      watch(*run.model, asked);
      work(run, {at::kCPU, backend});
      CHECK(!asked.empty());
      CHECK(asked.count(backend) == asked.size());
    }
}

TEST_CASE("a path that cannot serve the heads is refused, by every pass", "[backends]") {
  for (const auto& [name, work] : works()) {
    INFO(name);
    auto run = run_of("talking");
    CHECK_THROWS_AS(work(run, {at::kCPU, Backend::kSdpa}), BackendError);
  }
}

}  // namespace headlab::test_backends
