// Kinds whose additions are off, begun as plain heads are: they learn plain heads' very numbers.
#include <cmath>

#include "experiments/system/exit_codes.h"
#include "tests/scratch.h"
#include "tests/training_testing.h"

namespace headlab::test_initialisation {
namespace {

using namespace training_testing;

constexpr int kSteps = 60;

std::vector<double> losses_of(const std::string& attention, const std::string& model = "") {
  const Scratch folder;
  const auto outcome = run_in(
      folder / "run",
      experiment_of("name: plain\n"
                    "data: {kind: induction, symbols: 16, context: 16, eval_examples: 8}\n"
                    "model: {kind: decoder, layers: 2, d_model: 16, heads: 4, d_ff: 64" +
                    model + ", attention: " + attention +
                    "}\n"
                    "train: {steps: 60, batch: 4, lr: 1.0e-2, eval_every: 30, eval_batches: 1}\n"
                    "log: {every: 1, stats: [], attention: {every: 0}}\n"));
  REQUIRE(outcome.exit_code == kDone);
  std::vector<double> losses;
  for (const auto& row : read_metrics(folder / "run/metrics.jsonl"))
    if (const auto found = row.values.find("train/loss"); found != row.values.end())
      losses.push_back(found->second);
  REQUIRE(losses.size() == kSteps + 1);  // and before the first
  return losses;
}

}  // namespace

TEST_CASE("kinds that add nothing and begin as the host learn what plain heads learn",
          "[training][init]") {
  const auto plain = losses_of("mha");
  REQUIRE(plain.front() > plain.back() + 0.1);  // it learns
  SECTION("dcmha without compositions, to the bit") {
    REQUIRE(losses_of("{kind: dcmha, pre: false, post: false, init_weights: host}") == plain);
  }
  SECTION("mohsa without overlap, to the bit") {
    REQUIRE(losses_of("{kind: mohsa, overlap: 0, o_bias: false, init_weights: host}") == plain);
  }
  SECTION("collaborative with frozen blocks") {
    const auto blocks = losses_of(
        "{kind: collaborative, freeze_mixing: true, content_bias: false, v_bias: false, "
        "o_bias: false, init_weights: host}");
    for (size_t n = 0; n < plain.size(); ++n) {
      INFO("update " << n);
      REQUIRE(std::abs(blocks[n] - plain[n]) < 1e-5);
    }
  }
  SECTION("not as their papers begin") {
    REQUIRE(losses_of("{kind: dcmha, pre: false, post: false}") != plain);
    REQUIRE(losses_of("{kind: mohsa, overlap: 0, o_bias: false}") != plain);
  }
}

}  // namespace headlab::test_initialisation
