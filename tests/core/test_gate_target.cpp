// Gates that aim at a number of heads: the authors' numbers, the loss in a model, and a toy that
// ends where it should.
#include <algorithm>
#include <functional>
#include <set>

#include "experiments/analysis/published_gates.h"
#include "experiments/cases/case_file.h"
#include "experiments/models/gate_decisions.h"
#include "experiments/models/gate_target.h"
#include "experiments/pruning/gates.h"
#include "experiments/training/update.h"
#include "tests/catch.h"
#include "tests/models_testing.h"
#include "tests/scratch.h"

namespace headlab::test_gate_target {
using namespace testing;

namespace {

using Catch::Contains;

const std::filesystem::path kGolden =
    std::filesystem::path(build::kSourceDir) / "tests/golden/gate_target";

Tensor numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

// Two layers of four heads; `more` begins with a comma.
std::string gated_decoder(const std::string& target, const std::string& more = "") {
  return "{layers: 2, d_model: 16, heads: 4, attention: {kind: gated, target: " + target + "}" +
         more + "}";
}

Tensor log_alpha(Model& model, int64_t layer) {
  return model.named_parameters()["blocks." + std::to_string(layer) + ".attention.gate.log_alpha"];
}

AttentionHeads& layer_of(Model& model, int64_t layer) { return **model.sites()[0].layers[layer]; }

const Tensor kIds = at::arange(24, at::kLong).view({2, 12});

// The loss of the target in update `step`; NaN where the model has none.
Tensor target_loss(Model& model, int64_t step = 0) {
  model.train();
  ModelContext ctx;
  ctx.update = step;
  for (const auto& aux : model.forward({kIds}, ctx).aux)
    if (aux.name == "gate_target") return aux.value;
  return numbers({std::nan("")})[0];
}

double open_share(const Tensor& of) { return p_open(of, {}).mean().item<double>(); }

// lambda1 (s - t) + lambda2 (s - t)^2 with the multipliers of a model.
double formula(Model& model, double sparsity, double target) {
  const auto p = model.named_parameters();
  const double apart = sparsity - target;
  return p["gate_target.lambda1"].item<double>() * apart +
         p["gate_target.lambda2"].item<double>() * apart * apart;
}

}  // namespace

TEST_CASE("the authors' targets and subsets are reproduced, a perturbed one is not",
          "[gate_target]") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    INFO(entry.path());
    const auto judged = judge_case(entry.path(), at::kCPU, Backend::kAuto);
    REQUIRE(judged.verdicts.size() >= 3);
    for (const auto& verdict : judged.verdicts) {
      INFO(verdict_line(verdict));
      CHECK(verdict.pass);
    }
    std::map<std::string, std::string> metadata;
    const auto whole = read_tensors(entry.path(), &metadata);
    const Scratch scratch;
    for (const auto& [name, tensor] : whole) {
      if (!name.starts_with("in.") || !tensor.is_floating_point()) continue;
      auto tensors = whole;
      auto moved = tensor.flatten() + 1e-3 * (1 + at::arange(tensor.numel(), at::kDouble));
      tensors[name] = moved.view(tensor.sizes());  // not all alike: a softmax would not see that
      write_tensors(scratch / "perturbed.safetensors", tensors, metadata);
      INFO(name);
      CHECK_FALSE(all_pass(
          judge_case(scratch / "perturbed.safetensors", at::kCPU, Backend::kAuto).verdicts));
    }
    ++files;
  }
  REQUIRE(files == 4);
}

TEST_CASE("a target rises over the warm-up and asks of alive heads only", "[gate_target]") {
  CHECK(rising_sparsity(0.1, 0.6, 200, 150) == Approx(0.475));
  CHECK(rising_sparsity(0.1, 0.6, 200, -3) == 0.1);
  CHECK(rising_sparsity(0.1, 0.6, 0, 0) == 0.6);
  GateTarget eight;
  eight.heads = 8, eight.warmup = 10, eight.begin = 100;
  CHECK(sparsity_at(eight, 100, 32) == 0);
  CHECK(sparsity_at(eight, 105, 32) == Approx(0.375));
  CHECK(sparsity_at(eight, 1000, 32) == 0.75);
  CHECK(sparsity_at(eight, 1000, 16) == 0.5);
  CHECK(sparsity_at(eight, 1000, 5) == 0);  // fewer than are to stay
  GateTarget half;
  half.sparsity = 0.5;
  CHECK(sparsity_at(half, 0, 7) == 0.5);
}

TEST_CASE("exactly N heads of largest log_alpha stay, of equals those of later layers",
          "[gate_target]") {
  const double nan = std::nan("");
  const auto grid = numbers({2, 4, nan, 4, -1, 4}).view({2, 3});
  const auto kept = [&](int64_t count) {
    const auto mask = largest_heads(grid, count);
    REQUIRE(mask.sizes() == grid.sizes());
    std::vector<int64_t> heads;
    for (int64_t n = 0; n < 6; ++n)
      if (mask.flatten()[n].item<bool>()) heads.push_back(n);
    return heads;
  };
  using Heads = std::vector<int64_t>;
  CHECK(kept(0).empty());
  CHECK(kept(1) == Heads{5});
  CHECK(kept(2) == Heads{3, 5});
  CHECK(kept(4) == Heads{0, 1, 3, 5});
  CHECK(kept(5) == Heads{0, 1, 3, 4, 5});
  CHECK_THROWS_WITH(kept(6), Contains("6 heads asked of 5"));
}

TEST_CASE("soft subsets sum to k and cold ones are the k largest draws", "[gate_target]") {
  torch::manual_seed(3);
  const auto weight = random({12}), u = at::rand({12}, at::kDouble);
  for (int64_t k : {1, 5, 12})
    for (double temperature : {1e-3, 0.4, 10.}) {
      const auto gates = subset_gates(weight, u, k, temperature);
      CHECK(gates.sum().item<double>() == Approx(static_cast<double>(k)).epsilon(1e-9));
    }
  const auto drawn = weight - (-u.log()).log();
  const auto cold = subset_gates(weight, u, 5, 1e-4);
  CHECK(difference(cold, straight_through_subset(drawn, 5)) < 1e-6);

  const auto leaf = weight.clone().requires_grad_();
  const auto mask = straight_through_subset(leaf, 5);
  CHECK(mask.sum().item<double>() == 5);
  CHECK(difference(mask, mask.round()) == 0);
  const auto cotangent = random({12});
  (mask * cotangent).sum().backward();
  CHECK(difference(leaf.grad(), cotangent) == 0);
  CHECK(difference(straight_through_subset(weight, 12), at::ones({12}, at::kDouble)) == 0);
}

TEST_CASE("a model's target is over the gated heads of all layers that are alive",
          "[gate_target]") {
  const auto model = small_decoder(gated_decoder("{heads: 3, warmup: 10}"));
  const auto a0 = log_alpha(*model, 0), a1 = log_alpha(*model, 1);
  const auto near = [&](double sparsity, double target, int64_t step) {
    CHECK(target_loss(*model, step).item<double>() ==
          Approx(formula(*model, sparsity, target)).epsilon(1e-12));
  };
  const double whole = 1 - open_share(at::cat({a0, a1}));
  near(whole, 0, 0);
  near(whole, 0.5 * (1 - 3. / 8), 5);
  near(whole, 1 - 3. / 8, 10);
  // Nothing else is lost or won by gates.
  model->train();
  CHECK(model->forward({kIds}, {}).aux.size() == 1);
  CHECK(model->aux_names() == std::set<std::string>{"gate_target"});
  model->eval();
  CHECK(model->forward({kIds}, {}).aux.empty());

  layer_of(*model, 0).mask_heads({1, 2});
  const auto alive = at::cat({a0[0].view({1}), a0[3].view({1}), a1});
  near(1 - open_share(alive), 1 - 3. / 6, 10);
  model->zero_grad();
  target_loss(*model, 10).backward();
  CHECK((a0.grad() != 0).to(at::kLong).equal(at::tensor({1, 0, 0, 1}, at::kLong)));
  const auto masked = target_loss(*model, 10);
  model->exchange("self", 0, layer_of(*model, 0).slice());
  CHECK(difference(target_loss(*model, 10), masked) == 0);

  layer_of(*model, 0).mask_heads({0, 1, 2, 3});
  model->exchange("self", 0, layer_of(*model, 0).slice());
  near(1 - open_share(a1), 1 - 3. / 4, 10);
  layer_of(*model, 1).mask_heads({0, 1, 2, 3});
  CHECK(std::isnan(target_loss(*model, 10).item<double>()));
}

TEST_CASE("layers of other kinds do not count, and a target by layer is a mean over layers",
          "[gate_target]") {
  const auto mixed =
      small_decoder(gated_decoder("{sparsity: 0.5}", ", attention_at: {\"0\": {kind: moh}}"));
  const auto only = log_alpha(*mixed, 1);
  CHECK(target_loss(*mixed).item<double>() ==
        Approx(formula(*mixed, 1 - open_share(only), 0.5)).epsilon(1e-12));

  const auto each = small_decoder(gated_decoder("{heads: 3, scope: layer}"));
  layer_of(*each, 1).mask_heads({2});
  const double first = 1 - open_share(log_alpha(*each, 0));
  const double second = 1 - open_share(log_alpha(*each, 1).index({at::tensor({0, 1, 3})}));
  CHECK(target_loss(*each).item<double>() ==
        Approx(0.5 * (formula(*each, first, 0.25) + formula(*each, second, 0))).epsilon(1e-12));
}

TEST_CASE("multipliers ascend, once an update, whatever it is split into", "[gate_target]") {
  const Batch batch{kIds, kIds};
  const Batch halves[] = {{kIds.narrow(0, 0, 1), kIds.narrow(0, 0, 1)},
                          {kIds.narrow(0, 1, 1), kIds.narrow(0, 1, 1)}};
  double losses[2];
  for (int parts : {1, 2}) {
    const auto model = small_decoder(gated_decoder("{heads: 2, warmup: 100}"));
    at::NoGradGuard no_grad;
    for (const char* name : {"gate_target.lambda1", "gate_target.lambda2"})
      model->named_parameters()[name].zero_();
    model->named_parameters()["gate_target.lambda1"].fill_(0.7);
    Updater updater(model, {.kind = "constant", .lr = 1e-3}, {.multiplier_lr = 0.25}, {});
    model->train();
    at::AutoGradMode grad(true);
    const auto result =
        parts == 1 ? updater.step(50, {batch}) : updater.step(50, {halves[0], halves[1]});
    REQUIRE(result.losses.aux.size() == 1);
    losses[parts - 1] = result.losses.aux[0].value.item<double>();
    // Fewer gates are shut than asked (0.375), so lambda1 falls below and lambda2 above.
    CHECK(model->named_parameters()["gate_target.lambda1"].item<double>() ==
          Approx(0.45).epsilon(1e-6));
    CHECK(model->named_parameters()["gate_target.lambda2"].item<double>() ==
          Approx(0.25).epsilon(1e-6));
  }
  CHECK(losses[0] == Approx(losses[1]).epsilon(1e-12));
}

TEST_CASE("targets that cannot be are refused where they stand", "[gate_target]") {
  const auto said = [](const std::string& target, const std::string& message) {
    INFO(target);
    CHECK_THAT(complaint(gated_decoder(target)), Contains(message));
  };
  CHECK(complaint(gated_decoder("{heads: 8}")).empty());
  CHECK(complaint(gated_decoder("{heads: 4, scope: layer}")).empty());
  said("{heads: 9}", "attention.target.heads: must be at most 8, the heads of all layers");
  said("{heads: 5, scope: layer}", "attention.target.heads: must be at most 4");
  said("{heads: 0}", "attention.target.heads: must be at least 1");
  said("{heads: 3, sparsity: 0.5}", "attention.target.sparsity: is another way to say heads");
  said("{warmup: 30}", "attention.target: needs heads or sparsity");
  said("{scope: layer}", "attention.target: needs heads or sparsity");
  said("{sparsity: 1}", "attention.target.sparsity: must be");
  said("{heads: 3, scope: head}", "attention.target.scope: must be one of model, layer");
  said("{heads: 3}, gate: sigmoid", "attention.target: needs gate: hard_concrete");
  said("{heads: 3}, inner: {kind: gated, target: {heads: 2}}",
       "attention.inner.target: belongs to the outer gates");
  CHECK_THAT(complaint(gated_decoder("{heads: 3}",
                                     ", attention_at: {\"1\": {kind: gated, target: {heads: 2}}}")),
             Contains("attention_at.1.target") && Contains("a model has one target"));
  CHECK_THAT(complaint(gated_decoder("{heads: 5}", ", attention_at: {\"1\": mha}")),
             Contains("must be at most 4"));
}

namespace {

// Two layers of sixteen heads that differ in how loud they are, their gates open.
struct Toy {
  // With the usual clamp twenty shut gates would still count as 0.4 of a head.
  std::shared_ptr<Model> model = small_decoder(
      "{layers: 2, d_model: 16, heads: 16, head_dim: 2, "
      "attention: {kind: gated, clamp: 8, target: {heads: 12, warmup: 200}}}");
  Tensor loudness = at::empty({2, 16}, at::kDouble);

  Toy() {
    at::NoGradGuard no_grad;
    auto p = model->named_parameters();
    torch::manual_seed(2);
    for (int64_t layer = 0; layer < 2; ++layer) {
      log_alpha(*model, layer).fill_(2.5).add_(random({16}), 0.01);
      const auto path = "blocks." + std::to_string(layer) + ".attention.inner.o.weight";
      auto columns = p[path].view({16, 16, 2});
      for (int64_t h = 0; h < 16; ++h) {
        loudness[layer][h] = 3 * std::pow(10, -0.1 * static_cast<double>((5 * h + layer) % 16));
        columns.select(1, h).mul_(loudness[layer][h]);
      }
    }
    for (const char* name : {"gate_target.lambda1", "gate_target.lambda2"}) p[name].zero_();
  }

  // The gates alone learn, to go on saying what the model says with all of them open. What they
  // have decided after every tenth of the last `watched` updates.
  std::vector<GateDecisions> train(double gate_lr, double multiplier_lr, int64_t steps,
                                   int64_t watched) {
    const auto ids = at::randint(29, {8, 8}, at::kLong);
    const auto said = logits_of(*model, ids).detach().argmax(-1);
    Updater updater(model, {.kind = "constant", .lr = 1e-3},
                    {.gate_lr = gate_lr, .multiplier_lr = multiplier_lr, .gates_only = true},
                    {.seed = 1});
    model->train();
    std::vector<GateDecisions> seen;
    for (int64_t step = 0; step < steps; ++step) {
      updater.step(step, {{ids, said}});
      if (step >= steps - watched && step % 10 == 9) seen.push_back(gate_decisions(*model).value());
    }
    return seen;
  }
};

double share(const std::vector<GateDecisions>& seen,
             const std::function<bool(const GateDecisions&)>& holds) {
  return static_cast<double>(std::count_if(seen.begin(), seen.end(), holds)) /
         static_cast<double>(seen.size());
}

}  // namespace

namespace {

void require_decided(double multiplier_lr) {
  INFO("multiplier rate " << multiplier_lr);
  Toy toy;
  const auto weight = toy.model->named_parameters()["blocks.0.attention.inner.o.weight"];
  const auto before = weight.clone();
  const auto seen = toy.train(0.1, multiplier_lr, 1600, 400);
  // Noise never ends, and now and then it moves a gate that stands at the edge.
  CHECK(share(seen, [](const auto& d) { return std::abs(d.alive - 12) <= 1; }) > 0.7);
  CHECK(share(seen, [](const auto& d) { return d.undecided == 0; }) > 0.4);
  CHECK(share(seen, [](const auto& d) { return std::abs(d.expected - 12) < 1; }) > 0.7);
  const auto kept = gate_grids(*toy.model).test.at("self") > 0;
  const double loud = toy.loudness.masked_select(kept).mean().item<double>();
  CHECK(loud > 1.5 * toy.loudness.masked_select(kept.logical_not()).mean().item<double>());
  CHECK(at::equal(weight, before));
}

}  // namespace

TEST_CASE("a toy of 32 heads ends within one of its target, and decides its gates",
          "[gate_target][whole_training]") {
  require_decided(0.1);
}

TEST_CASE("a toy of 32 heads does so with slow multipliers, too", "[gate_target][.slow]") {
  require_decided(0.01);
}

TEST_CASE("slow gates with fast multipliers meet the target without deciding",
          "[gate_target][.slow]") {
  const auto seen = Toy().train(0.02, 1, 500, 100);
  CHECK(share(seen, [](const auto& d) { return std::abs(d.expected - 12) < 1; }) > 0.8);
  CHECK(share(seen, [](const auto& d) { return d.undecided >= 28; }) == 1);
}

}  // namespace headlab::test_gate_target
