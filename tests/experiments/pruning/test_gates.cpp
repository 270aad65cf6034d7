// Gates of whole models: what they have decided, and models that get them and lose them.
#include "core/gate_target.h"
#include "experiments/models/gate_decisions.h"
#include "experiments/models/gate_target.h"
#include "experiments/models/stack_options.h"
#include "experiments/pruning/gates.h"
#include "experiments/runs/checkpoint.h"
#include "tests/catch.h"
#include "tests/models_testing.h"

namespace headlab::test_gates {
using namespace testing;

namespace {

using Catch::Contains;
using Heads = std::vector<std::string>;

const Tensor kIds = at::arange(24, at::kLong).view({2, 12}).remainder(18);

AttentionHeads& layer_of(Model& model, int64_t layer) { return **model.sites()[0].layers[layer]; }

void set_log_alpha(Model& model, int64_t layer, const std::vector<double>& values) {
  at::NoGradGuard no_grad;
  const auto path = "blocks." + std::to_string(layer) + ".attention.gate.log_alpha";
  model.named_parameters()[path].copy_(at::tensor(values, at::kDouble));
}

// A run whose weights nobody trained, of two layers of four heads.
OpenedRun run_of(const std::string& attention, const std::string& more = "") {
  OpenedRun run;
  read_config(run.experiment,
              parse_config("{name: a, data: {kind: induction, symbols: 18, context: 12}, model: "
                           "{layers: 2, d_model: 16, heads: 4, attention: " +
                               attention + more + "}}",
                           "test"));
  run.data = open_data(run.experiment.data);
  run.data_description = describe_data(*run.data);
  run.model = build_model(run.experiment, run.data_description.shape, at::kCPU);
  at::NoGradGuard no_grad;
  for (auto& p : run.model->parameters()) p.add_(at::randn_like(p), 0.2);
  run.model->eval();
  return run;
}

ConvertedModel gated(const OpenedRun& run, const std::string& options) {
  const auto node = parse_config(options, "test");
  return convert_model(
      run, [&](const TrainedLayer& layer) { return to_gated(layer, node); }, at::kCPU);
}

double apart(Model& a, Model& b) {
  at::NoGradGuard no_grad;
  return difference(logits_of(a, kIds), logits_of(b, kIds));
}

// What would be written and read again.
OpenedRun as_run(const ConvertedModel& made, const OpenedRun& from) {
  OpenedRun run;
  auto experiment = made.experiment;
  read_config(run.experiment, parse_config(to_yaml(write_block(experiment)), "test"));
  run.data = from.data, run.data_description = from.data_description;
  run.model = build_model(run.experiment, run.data_description.shape, at::kCPU);
  load_model(*run.model, module_tensors(*made.model));
  run.model->eval();
  return run;
}

}  // namespace

TEST_CASE("decisions count gates of alive heads only", "[gates]") {
  const auto run =
      run_of("{kind: gated}", ", attention_at: {\"0\": {kind: gated, test_gate: argmax}}");
  auto& model = *run.model;
  set_log_alpha(model, 0, {-4, -1, 1, 4});
  set_log_alpha(model, 1, {-3, 0, 2.3, 2.5});
  auto d = gate_decisions(model).value();
  CHECK(d.heads == 8);
  CHECK(d.undecided == 4);
  CHECK(d.alive == 2 + 3);
  const auto all = at::tensor({-4., -1., 1., 4., -3., 0., 2.3, 2.5}, at::kDouble);
  CHECK(d.expected == Approx(p_open(all, {}).sum().item<double>()).epsilon(1e-6));

  layer_of(model, 1).mask_heads({1, 3});
  const auto check_masked = [&] {
    d = gate_decisions(model).value();
    CHECK(d.heads == 6);
    CHECK(d.undecided == 3);
    CHECK(d.alive == 3);
    const auto grids = gate_grids(model);
    const struct {
      Tensor log_alpha, test;
    } grid{grids.log_alpha.at("self"), grids.test.at("self")};
    CHECK(grid.log_alpha.sizes() == at::IntArrayRef({2, 4}));
    CHECK(at::allclose(grid.log_alpha[0], all.narrow(0, 0, 4)));
    CHECK(at::equal(grid.test[0], at::tensor({0., 0., 1., 1.}, at::kDouble)));
    CHECK(std::isnan(grid.log_alpha[1][1].item<double>()));
    CHECK(std::isnan(grid.test[1][3].item<double>()));
    CHECK(grid.log_alpha[1][2].item<double>() == Approx(2.3));
  };
  check_masked();
  model.exchange("self", 1, layer_of(model, 1).slice());
  check_masked();

  const auto mixed = run_of("mha", ", attention_at: {\"1\": {kind: gated, gate: sigmoid}}");
  CHECK_FALSE(gate_decisions(*mixed.model));
  CHECK(gate_report(*mixed.model, {}).is_null());
  CHECK(gate_grids(*mixed.model).log_alpha.at("self").isnan().all().item<bool>());
}

TEST_CASE("a report names the heads that stay and has the histogram of log_alpha", "[gates]") {
  const auto run = run_of("{kind: gated}");
  set_log_alpha(*run.model, 0, {-9, -4.5, 1, 4});
  set_log_alpha(*run.model, 1, {-3, 0.5, 2.3, 0.7});
  auto report = gate_report(*run.model, {});
  CHECK(report["kept"].get<Heads>() == Heads{"0:2", "0:3", "1:1", "1:2", "1:3"});
  CHECK(report["shut"].get<Heads>() == Heads{"0:0", "0:1", "1:0"});
  CHECK(report["log_alpha"]["edges"].get<std::vector<int>>() ==
        std::vector<int>{-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5});
  CHECK(report["log_alpha"]["counts"].get<std::vector<int>>() ==
        std::vector<int>{2, 0, 1, 0, 0, 2, 1, 1, 0, 1});
  CHECK_THAT(gate_text(report), Contains("5 of 8 heads alive, 4 undecided") &&
                                    Contains("log_alpha -5 to -4: 2 heads") &&
                                    Contains("kept 0:2 0:3 1:1 1:2 1:3"));
  report = gate_report(*run.model, 2);
  CHECK(report["kept"].get<Heads>() == Heads{"0:3", "1:2"});
  CHECK(report["shut"].size() == 6);
}

TEST_CASE("gates around trained heads change nothing, whatever the kind", "[gates]") {
  for (const auto& kind : head_names()) {
    if (kind == "gated" || !head_kind(kind).options()->traits().causal) continue;
    DYNAMIC_SECTION(kind) {
      const auto run = run_of("{kind: " + kind + "}");
      const auto made = gated(run, "{target: {heads: 5}}");
      CHECK(apart(*run.model, *made.model) == 0);
      CHECK(gate_decisions(*made.model)->undecided == 0);
      const auto written = as_run(made, run);
      CHECK(apart(*run.model, *written.model) == 0);
      CHECK(written.model->named_parameters()["gate_target.lambda1"].item<double>() == 0);

      const auto back = ungate(written, at::kCPU);
      CHECK(back.experiment.model.as<StackOptions>().attention.kind() == kind);
      CHECK(apart(*run.model, *back.model) == 0);
      const auto before = module_tensors(*run.model), after = module_tensors(*back.model);
      REQUIRE(before.size() == after.size());
      for (const auto& [name, tensor] : before) CHECK(at::equal(tensor, after.at(name)));
    }
  }
}

TEST_CASE("masked and sliced layers get gates for the heads that they have", "[gates]") {
  const auto run = run_of("{kind: mha, bias: true}", ", kv_heads: 2");
  layer_of(*run.model, 0).mask_heads({1, 2});
  run.model->exchange("self", 0, layer_of(*run.model, 0).slice());
  layer_of(*run.model, 1).mask_heads({3});
  const auto made = gated(run, "{init: 3.0}");
  CHECK(apart(*run.model, *made.model) == 0);
  const auto grid = gate_grids(*made.model).log_alpha.at("self");
  const auto there = at::tensor({1, 0, 0, 1, 1, 1, 1, 0}, at::kLong).view({2, 4});
  CHECK(at::equal(grid.isnan().logical_not().to(at::kLong), there));
  CHECK((grid.nan_to_num(3) - 3).abs().max().item<double>() < 0.06);
  const auto written = as_run(made, run);
  CHECK(apart(*run.model, *written.model) == 0);

  // A gate that shuts is a head that goes.
  set_log_alpha(*written.model, 0, {4, -4});
  set_log_alpha(*written.model, 1, {-4, 4, 4, 4});
  const auto back = ungate(written, at::kCPU);
  CHECK(apart(*back.model, *run.model) == 0);
  layer_of(*back.model, 0).mask_heads({1, 2, 3});
  layer_of(*back.model, 1).mask_heads({0, 3});
  CHECK(apart(*back.model, *written.model) < 1e-6);
  CHECK(apart(*back.model, *run.model) > 1e-3);
}

TEST_CASE("with gates decided, the model without them and shut heads masked is the gated one",
          "[gates]") {
  for (const std::string inner : {"mha", "{kind: collaborative}", "{kind: mohsa}"}) {
    INFO(inner);
    auto run = run_of("{kind: gated, inner: " + inner + ", target: {heads: 4}}",
                      ", attention_at: {\"1\": {penalty: 2.0}}");
    run.experiment.train.gates_only = true;
    set_log_alpha(*run.model, 0, {-4, 3, -2.5, 2.5});
    set_log_alpha(*run.model, 1, {4, -5, 2.4, 4});
    auto made = ungate(run, at::kCPU);
    CHECK_FALSE(made.experiment.train.gates_only);
    CHECK(apart(*made.model, *run.model) > 1e-3);
    const auto shut = gate_grids(*run.model).test.at("self") == 0;
    for (int64_t layer : {0, 1}) {
      std::vector<int64_t> gone;
      for (int64_t h = 0; h < 4; ++h)
        if (shut[layer][h].item<bool>()) gone.push_back(h);
      CHECK(gone.size() == (layer == 0 ? 2u : 1u));
      layer_of(*made.model, layer).mask_heads(gone);
    }
    CHECK(apart(*made.model, *run.model) < 1e-6);
    for (const auto& [name, tensor] : module_tensors(*made.model)) {
      CHECK_FALSE(name.starts_with(kGateTarget));
      CHECK_FALSE(Contains("gate").match(name));
    }
  }
}

TEST_CASE("what cannot get gates or lose them is told", "[gates]") {
  const auto run = run_of("{kind: gated}");
  CHECK_THROWS_AS(gated(run, "{}"), ConfigError);
  CHECK_THROWS_WITH(gated(run, "{}"), Contains("layer 0: has gates already"));
  const auto plain = run_of("mha");
  CHECK_THROWS_WITH(gated(plain, "{target: {heads: 9}}"), Contains("at most 8"));
  CHECK_THROWS_WITH(gated(plain, "{inti: 3}"), Contains("did you mean 'init'?"));
  CHECK_THROWS_AS(ungate(plain, at::kCPU), ConfigError);
  CHECK_THROWS_AS(ungate(run_of("{kind: gated, gate: sigmoid}"), at::kCPU), ConfigError);
  auto experiment = plain.experiment;
  experiment.train.gates_only = true;
  CHECK_THROWS_WITH(build_model(experiment, plain.data->shape(), at::kCPU),
                    Contains("train.gates_only: the model has no gates"));
}

}  // namespace headlab::test_gates
