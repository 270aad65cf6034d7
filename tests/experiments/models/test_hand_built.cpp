// The hand-built circuit does what its header says.
#include "core/observe/probe.h"
#include "experiments/inference/evaluate.h"
#include "experiments/models/site_heads.h"
#include "experiments/runs/open_run.h"
#include "tests/catch.h"
#include "tests/hand_built.h"
#include "tests/models_testing.h"
#include "tests/scratch.h"

namespace headlab::test_hand_built {
namespace {

using testing::difference;
using testing::hand_built_decoder;

// `half` distinct tokens, twice: [B, 2 half].
Tensor repeated(int64_t B, int64_t half, int64_t vocabulary) {
  torch::manual_seed(3);
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < B; ++b)
    rows.push_back(at::randperm(vocabulary, at::kLong).narrow(0, 0, half).repeat({2}));
  return at::stack(rows);
}

Tensor logits_without(Model& model, const Tensor& ids, const std::vector<HeadId>& silent) {
  ModelContext ctx;
  ctx.edit_heads = [&](const std::string&, int64_t layer, HeadContext& heads) {
    auto gates = at::ones({1, 4, 1}, at::kDouble);
    for (const auto& [l, h, site] : silent)
      if (l == layer) gates.select(1, h).zero_();
    heads.gates = gates;
  };
  at::NoGradGuard no_grad;
  return model.forward({ids}, ctx).logits;
}

// Share of the tokens of the second half, all but its first, that are predicted.
double copied(Model& model, const Tensor& ids, const std::vector<HeadId>& silent) {
  const int64_t half = ids.size(1) / 2;
  const auto guess = logits_without(model, ids, silent).argmax(-1).narrow(1, half, half - 1);
  return guess.eq(ids.narrow(1, half + 1, half - 1)).to(at::kDouble).mean().item<double>();
}

TEST_CASE("the hand-built circuit has a previous-token head and an induction head", "[hand]") {
  const auto model = hand_built_decoder({});
  const auto ids = repeated(10, 50, 64);
  HeadProbe probe;
  probe.statistics = probe.matches = true;
  probe.tokens = ids;
  ModelContext ctx;
  ctx.observer = &probe;
  at::NoGradGuard no_grad;
  model->forward({ids}, ctx);
  const auto first = probe.values(0), second = probe.values(1);
  CHECK(first.at("prev_token")[0] > 0.999999);
  CHECK(second.at("induction")[0] > 0.999999);
  for (int64_t h = 1; h < 4; ++h) {
    CHECK(first.at("prev_token")[h] < 0.2);
    CHECK(first.at("induction")[h] < 0.2);
    CHECK(second.at("prev_token")[h] < 0.2);
    CHECK(second.at("induction")[h] < 0.2);
  }
  CHECK(first.at("entropy_normalized")[1] == Approx(1));
  CHECK(second.at("entropy_normalized")[1] == Approx(1));
  CHECK(first.at("entropy_normalized")[2] < 0.99);
}

TEST_CASE("the hand-built circuit copies until one of its two heads is silent", "[hand]") {
  const auto model = hand_built_decoder({});
  const auto ids = repeated(4, 50, 64);
  CHECK(copied(*model, ids, {}) == 1);
  CHECK(copied(*model, ids, {{1, 0}}) < 0.1);
  CHECK(copied(*model, ids, {{0, 0}}) < 0.1);
  const auto logits = logits_without(*model, ids, {});
  CHECK(difference(logits, logits_without(*model, ids, {{0, 1}, {0, 2}, {0, 3}})) == 0);
  CHECK(difference(logits, logits_without(*model, ids, {{1, 1}, {1, 2}, {1, 3}})) == 0);
}

TEST_CASE("the hand-built circuit finds tokens that came several times, and none at the start",
          "[hand]") {
  const auto model = hand_built_decoder({.vocabulary = 9, .context = 20, .heads = 1});
  const auto ids = at::tensor({4, 1, 2, 1, 3, 4, 1}, at::kLong).unsqueeze(0);
  HeadProbe probe;
  probe.maps = true;
  ModelContext ctx;
  ctx.observer = &probe;
  at::NoGradGuard no_grad;
  model->forward({ids}, ctx);
  const auto map = probe.layer_maps().at(1)[0][0];  // [T,S]
  CHECK(map[5][1].item<double>() == Approx(1));     // token 4 was followed by 1, at place 1
  CHECK(map[6][2].item<double>() == Approx(0.5));   // token 1 by 2 and by 3
  CHECK(map[6][4].item<double>() == Approx(0.5));
}

TEST_CASE("a run of the hand-built circuit opens as the same model", "[hand]") {
  const Scratch folder;
  testing::write_hand_built_run(folder / "run",
                                "{kind: induction, symbols: 64, context: 64, eval_examples: 16}");
  const auto opened = open_run_and_data(folder / "run", at::kCPU);
  const auto ids = repeated(2, 30, 64);
  const auto logits = testing::logits_of(*opened.model, ids);
  CHECK(logits.scalar_type() == at::kFloat);
  const auto exact = testing::logits_of(*hand_built_decoder({.context = 64}), ids);
  CHECK(difference(logits.to(at::kDouble), exact) < 1e-4);
  const auto measured =
      evaluate(*opened.model, {opened.data.get(), Split::kValidation, 16}, {at::kCPU});
  CHECK(measured.mean("accuracy") >
        0.6);  // tokens of these blocks repeat: some have two successors
}

}  // namespace
}  // namespace headlab::test_hand_built
