// Time that slicing saves: measured by turns, with its spread, and noise called noise.
#include <cmath>

#include "experiments/pruning/prune_report.h"
#include "experiments/pruning/speed.h"
#include "tests/catch.h"

namespace headlab::test_speed {

using Catch::Contains;

TEST_CASE("two models are timed by turns, and each goes first as often", "[speed]") {
  std::string order;
  const auto pass = [&](char name) {
    return [&order, name] { return order += name, static_cast<double>(order.size()); };
  };
  const auto speeds = time_by_turns(pass('m'), pass('s'), 4);
  CHECK(order == "mssmmssm");
  CHECK(speeds.masked == std::vector<double>{1, 4, 5, 8});
  CHECK(speeds.sliced == std::vector<double>{2, 3, 6, 7});
}

TEST_CASE("time saved is the median over pairs, which a slow moment does not move", "[speed]") {
  const auto saved = time_saved({.masked = {1, 1.2, 9, 0.9, 1}, .sliced = {0.5, 0.6, 4.5, 9, 0.5}});
  CHECK(saved.share == Approx(0.5));
  CHECK(saved.low == Approx(0.5));
  CHECK(saved.high == Approx(0.5));
  CHECK(saved.masked == 1);
  CHECK(saved.sliced == Approx(0.6));
  CHECK(saved.pairs == 5);
  CHECK(saved.beyond_noise());
}

TEST_CASE("a difference that the pairs do not agree on is noise", "[speed]") {
  // Of the same cut the shortest passes of two measurements said -135 % and 2.7 %.
  CHECK_FALSE(time_saved({.masked = {1, 1, 1, 1, 1}, .sliced = {2.35, 0.9, 0.95, 1.1, 1.02}})
                  .beyond_noise());
  CHECK_FALSE(time_saved({.masked = {1, 1, 1}, .sliced = {1, 1, 1}}).beyond_noise());
  CHECK(time_saved({.masked = {1, 1, 1, 1}, .sliced = {1.1, 1.2, 1.1, 1.3}}).beyond_noise());
}

namespace {

nlohmann::ordered_json report_of(const TimeSaved& time) {
  nlohmann::ordered_json report{{"rounds", nlohmann::ordered_json::array()},
                                {"split", "val"},
                                {"measured", "first batches, 100 tokens"},
                                {"empty_layers", nlohmann::ordered_json::array()},
                                {"tokens", 100},
                                {"p_examples", 64},
                                {"batch", 16},
                                {"time_pairs", time.pairs},
                                {"time_saved", time.share},
                                {"time_saved_quartiles", {time.low, time.high}},
                                {"time_beyond_noise", time.beyond_noise()}};
  for (const char* name : {"l2", "relative", "cosine", "kl", "p_holm", "loss_delta",
                           "accuracy_delta", "masked_sliced_difference", "flops_saved"})
    report[name] = 0.001;
  return report;
}

}  // namespace

TEST_CASE("what a model or a kind does not have is a dash in the report of pruning") {
  auto report = report_of({.share = 0.2, .low = 0.1, .high = 0.3, .pairs = 31});
  for (const char* name : {"kl", "masked_sliced_difference", "flops_saved", "p_holm", "cosine"})
    report[name] = -std::nan("");
  report["p_examples"] = 8;
  report["rounds"].push_back({{"kept", 4},
                              {"removed", nlohmann::ordered_json::array()},
                              {"parameters", 640},
                              {"flops_per_token", std::nan("")},
                              {"loss", 2.5},
                              {"accuracy", 0.5}});
  const auto said = pruning_text(report, prediction_task());
  CHECK_THAT(said, Contains("cosine -; logits: KL -\n"));
  CHECK_THAT(said, Contains("(p -, 8 examples)"));
  CHECK_THAT(said, Contains("sliced against masked: logits -, - of FLOPs saved\n"));
  CHECK_THAT(said, Contains("         640            -\n"));
  CHECK(said.find("nan") == said.npos);
  report["kl"] = 0.25;
  CHECK_THAT(pruning_text(report, prediction_task()), Contains("KL 0.25 nat\n"));
}

TEST_CASE("the report of pruning prints time with its spread, and p with its examples") {
  const auto clear = pruning_text(
      report_of({.share = 0.214, .low = 0.2, .high = 0.22, .pairs = 31}), prediction_task());
  CHECK_THAT(clear, Contains("time of a forward pass at batch 16: 21.4 % saved (middle half of 31 "
                             "pairs: 20.0 to 22.0 %)\n"));
  CHECK_THAT(clear, Contains("(p = 0.001 *, 64 examples)"));
  const auto noise = pruning_text(
      report_of({.share = 0.03, .low = -0.02, .high = 0.05, .pairs = 31}), prediction_task());
  CHECK_THAT(noise, Contains("at batch 16: no difference beyond noise (middle half of 31 pairs: "
                             "-2.0 to 5.0 %)\n"));
  CHECK(noise.find("3.0 %") == noise.npos);
}

}  // namespace headlab::test_speed
