// Importance and ablation of a whole model's heads, held against passes made for each by itself.
#include "core/torch.h"
#include "experiments/inference/evaluate.h"
#include "experiments/measuring/ablation.h"
#include "experiments/measuring/importance.h"
#include "experiments/pruning/prune.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/hand_built.h"
#include "tests/models_testing.h"

namespace headlab::test_ablation {
using namespace testing;

namespace {

constexpr const char* kThreeLayers = "layers: 3, d_model: 24, heads: 3, position: alibi";

struct Subject {
  std::shared_ptr<DataSource> data =
      open("kind: induction, symbols: 29, context: 12, eval_examples: 10");
  std::shared_ptr<Model> model;

  explicit Subject(const std::string& attention = "{kind: mha, bias: true}")
      : model(small_decoder("{" + std::string(kThreeLayers) + ", attention: " + attention + "}")) {}
  Sample sample() const { return {data.get(), Split::kValidation, 4, 2}; }
  Batch examples() const { return data->eval_batch(Split::kValidation, 0, 8); }
};

using Edit = std::function<void(int64_t layer, HeadContext& heads)>;

Pass pass(Model& model, const Tensor& ids, const Edit& edit = {}, HeadProbe* probe = nullptr) {
  HiddenStates hidden;
  ModelContext ctx;
  ctx.hidden = &hidden;
  ctx.observer = probe;
  if (edit)
    ctx.edit_heads = [&](const std::string&, int64_t layer, HeadContext& h) { edit(layer, h); };
  const auto logits = model.forward({ids}, ctx).logits;
  return {model.last_state(hidden), logits};
}

// The loss of each example, summed over its tokens: [N].
Tensor losses(Model& model, const Batch& b, const Edit& edit) {
  const auto logits = pass(model, b.ids, edit).logits;
  const auto nll = at::log_softmax(logits, -1).gather(2, b.targets.clamp_min(0).unsqueeze(2)).neg();
  return nll.squeeze(2).masked_fill(b.targets < 0, 0).sum(1);
}

}  // namespace

TEST_CASE("ablation that goes on from hidden states equals whole passes", "[ablation]") {
  at::NoGradGuard no_grad;
  const Subject s;
  const auto b = s.examples();
  HeadProbe probe;
  probe.head_outputs = true;
  const auto full = pass(*s.model, b.ids, {}, &probe);
  for (const auto& name : ablation_modes()) {
    const auto mode = ablation_mode(name);
    auto sets = single_heads(*s.model);
    REQUIRE(sets.size() == 9);
    const auto pairs = head_pairs(*s.model), rest = all_but_one(*s.model);
    REQUIRE(pairs.size() == 36);
    REQUIRE(rest[4] == std::vector<HeadId>{{1, 0}, {1, 2}});
    for (size_t n = 0; n < pairs.size(); n += 3) sets.push_back(pairs[n]);
    sets.insert(sets.end(), rest.begin(), rest.end());
    for (const auto& got : ablate(*s.model, s.sample(), sets, mode, {at::kCPU})) {
      const auto edit = [&](int64_t layer, HeadContext& heads) {
        auto gone = at::zeros({3}, at::kBool);
        for (const auto& id : got.heads)
          if (id.layer == layer) gone[id.head] = true;
        if (mode == AblationMode::kUniform) {
          heads.uniform = gone;
          return;
        }
        heads.gates = gone.logical_not().to(at::kDouble).view({1, 3, 1});
        if (mode == AblationMode::kMean) {
          const auto& said = probe.layer_outputs().at(layer).edited;  // [B,H,T,e]
          heads.offset = said.mean(std::vector<int64_t>{0, 2}, true) * gone.view({1, 3, 1, 1});
        }
        if (mode == AblationMode::kPositionMean) {
          const auto& said = probe.layer_outputs().at(layer).edited;  // [B,H,T,e]
          heads.offset = said.mean(0, /*keepdim=*/true) * gone.view({1, 3, 1, 1});
        }
      };
      OutputChangeSums want(s.data->task());
      want.add(full, pass(*s.model, b.ids, edit), b);
      INFO(name << " of " << to_text(got.heads.front()) << " and others");
      for (const auto& [delta, value] : want.values())
        REQUIRE(got.changes.at(delta) == Approx(value).epsilon(1e-9).margin(1e-12));
      REQUIRE(got.changes.at("l2") > 1e-3);
    }
  }
}

TEST_CASE("ablating a pruned model counts heads as built and leaves it as it was", "[ablation]") {
  at::NoGradGuard no_grad;
  for (const std::string kind : {"{kind: dcmha}", "{kind: moh}"}) {
    const Subject masked(kind), sliced(kind);
    remove_heads(*masked.model, {{0, 1}, {2, 0}});
    remove_heads(*sliced.model, {{0, 1}, {2, 0}});
    slice_heads(*sliced.model);
    const auto before = logits_of(*sliced.model, sliced.examples().ids);
    for (const auto& name : ablation_modes()) {
      const auto sets = single_heads(*sliced.model);
      REQUIRE(sets.size() == 7);
      const auto mode = ablation_mode(name);
      const auto a = ablate(*masked.model, masked.sample(), sets, mode, {at::kCPU});
      const auto b = ablate(*sliced.model, sliced.sample(), sets, mode, {at::kCPU});
      for (size_t n = 0; n < sets.size(); ++n)
        REQUIRE(a[n].changes.at("l2") == Approx(b[n].changes.at("l2")).epsilon(1e-9));
    }
    REQUIRE(difference(before, logits_of(*sliced.model, sliced.examples().ids)) == 0);
  }
}

TEST_CASE("without either head of the induction circuit copying is lost", "[ablation]") {
  // Few of the random symbols come twice in a block, where induction cannot tell which is meant.
  const auto model = hand_built_decoder({.vocabulary = 200, .context = 32});
  const auto data = open("kind: induction, symbols: 200, context: 32, eval_examples: 12");
  const Sample all{data.get(), Split::kValidation, 4};
  for (const auto& result :
       ablate(*model, all, single_heads(*model), AblationMode::kZero, {at::kCPU})) {
    const auto id = result.heads.front();
    const auto& d = result.changes;
    INFO(to_text(id));
    if (id.head == 0) {
      CHECK(d.at("accuracy_delta") < -0.85);
      CHECK(d.at("loss_delta") > 2);
      CHECK(result.significance.holm < 1e-6);
    } else {
      CHECK(d.at("l2") == 0);
      CHECK(d.at("loss_delta") == 0);
      CHECK(result.significance.p == 1);
    }
  }
  // Equal weights on all keys find no token either.
  const auto spread = ablate(*model, all, {{{1, 0}}, {{1, 1}}}, AblationMode::kUniform, {at::kCPU});
  CHECK(spread[0].changes.at("accuracy_delta") < -0.85);
  CHECK(spread[1].changes.at("l2") == 0);
}

TEST_CASE("importance is the mean size of the derivative at gates of one", "[importance]") {
  const Subject s;
  const auto b = s.examples();
  const auto measured = measure_importance(*s.model, s.sample(), {at::kCPU});
  for (const auto& p : s.model->parameters()) REQUIRE_FALSE(p.grad().defined());
  at::NoGradGuard no_grad;
  for (int64_t l = 0; l < 3; ++l)
    for (int64_t h = 0; h < 3; ++h) {
      const auto at_gate = [&](double gate) {
        return losses(*s.model, b, [&](int64_t layer, HeadContext& heads) {
          if (layer != l) return;
          heads.gates = at::ones({1, 3, 1}, at::kDouble);
          heads.gates[0][h] = gate;
        });
      };
      const auto slope = (at_gate(1 + 1e-4) - at_gate(1 - 1e-4)) / 2e-4;  // dL_n / dxi
      CHECK(measured.raw.at("paper").at("self")[l][h].item<double>() ==
            Approx(slope.abs().mean().item<double>()).epsilon(1e-5));
      CHECK(measured.paper_interval.at("self")[l][h].item<double>() ==
            Approx(2.364624 * slope.abs().std().item<double>() / std::sqrt(8)).epsilon(1e-4));
      const auto batches = slope.view({2, 4}).sum(1).abs().sum() / b.ids.numel();
      CHECK(measured.raw.at("batch").at("self")[l][h].item<double>() ==
            Approx(batches.item<double>()).epsilon(1e-5));
    }
  // Only `batch` depends on the batches.
  const auto other =
      measure_importance(*s.model, {s.data.get(), Split::kValidation, 8, 1}, {at::kCPU});
  for (const std::string same : {"paper", "per_position"})
    CHECK(difference(measured.raw.at(same).at("self"), other.raw.at(same).at("self")) < 1e-12);
  CHECK(difference(measured.raw.at("batch").at("self"), other.raw.at("batch").at("self")) > 1e-4);
  CHECK(difference(measured.activation.at("self"), other.activation.at("self")) < 1e-12);
  const auto norms = normalized_by_layer(measured.raw.at("paper").at("self")).norm(2, 1);
  CHECK(difference(norms, at::ones({3}, at::kDouble)) < 1e-12);
}

TEST_CASE("a pruned head has no importance and its layer's others are not measured by it",
          "[importance]") {
  const Subject s;
  remove_heads(*s.model, {{1, 2}});
  for (bool sliced : {false, true}) {
    if (sliced) slice_heads(*s.model);
    const auto measured =
        measure_importance(*s.model, {s.data.get(), Split::kValidation, 8, 1}, {at::kCPU});
    const auto paper = normalized_by_layer(measured.raw.at("paper").at("self"));
    CHECK(paper[1][2].isnan().item<bool>());
    CHECK(measured.activation.at("self")[1][2].isnan().item<bool>());
    CHECK(paper[1].nan_to_num(0).norm().item<double>() == Approx(1));
    CHECK(paper.isnan().sum().item<int64_t>() == 1);
  }
}

TEST_CASE("the norm by layer sets layers level, the others rank heads as they were measured",
          "[importance]") {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const SiteGrids measured{{"cross", at::tensor({0.5, 0.25}, at::kDouble).view({1, 2})},
                           {"self", at::tensor({3.0, 4.0, 0.3, nan}, at::kDouble).view({2, 2})}};
  const SiteGrids alive{{"cross", at::ones({1, 2}, at::kBool)},
                        {"self", at::tensor({1, 1, 1, 0}, at::kInt).to(at::kBool).view({2, 2})}};
  CHECK(importance_norms() == std::vector<std::string>{"layer", "global", "none"});
  const auto order = [&](const std::string& norm) {
    return lowest_heads(normalized(measured, norm), alive, 5, 0);
  };
  const auto layer = normalized(measured, "layer");
  CHECK(difference(layer.at("self")[0], at::tensor({0.6, 0.8}, at::kDouble)) < 1e-12);
  CHECK(layer.at("self")[1][0].item<double>() == Approx(1));
  CHECK(order("layer") ==
        std::vector<HeadId>{{0, 1, "cross"}, {0, 0}, {0, 1}, {0, 0, "cross"}, {1, 0}});
  double square = 0;
  for (const auto& [site, grid] : normalized(measured, "global"))
    square += grid.square().nansum().item<double>();
  CHECK(square == Approx(1));
  CHECK(difference(normalized(measured, "none").at("cross"), measured.at("cross")) == 0);
  CHECK(order("none") ==
        std::vector<HeadId>{{0, 1, "cross"}, {1, 0}, {0, 0, "cross"}, {0, 0}, {0, 1}});
  CHECK(order("global") == order("none"));
  CHECK_THROWS_AS(normalized(measured, "head"), c10::Error);
}

}  // namespace headlab::test_ablation
