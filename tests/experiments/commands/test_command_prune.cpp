// `headlab prune` and `headlab ablate` from outside: what they report, what they write, and that
// every command goes on with it.
#include <fmt/format.h>

#include <cmath>

#include "experiments/files/h5.h"
#include "tests/command_testing.h"

namespace headlab::testing::test_command_prune {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const Arguments kTwoLayers{"model.layers=2", "model.heads=4", "train.eval_batch=8"};

Json object_of(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

Json pruned(const Bench& bench, const std::string& run, Arguments options) {
  options.insert(options.begin(), {"prune", run, "--json"});
  return object_of(bench.headlab(options));
}

Json evaluation(const Bench& bench, const std::string& run) {
  return object_of(bench.headlab({"eval", run, "--json"}));
}

TEST_CASE("a pruned run says what is left of it and every command goes on with it") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  for (const bool slice : {false, true}) {
    const std::string out = slice ? "sliced" : "masked";
    Arguments options{"--heads", "0:1,3", "1:0", "--batches", "0", "--out", out};
    if (slice) options.push_back("--slice");
    const Json report = pruned(bench, run, options);
    CHECK(report.at("kept") == 5);
    CHECK(report.at("removed") == Json({"0:1", "0:3", "1:0"}));
    CHECK(report.at("alive") == Json({"0:0", "0:2", "1:1", "1:2", "1:3"}));
    CHECK(report.at("sliced") == slice);
    CHECK(report.at("masked_sliced_difference").get<double>() <= 1e-5);
    // A head is 4 wide in a model of 16: 4 matrices of 64 weights.
    CHECK(report.at("parameters_before").get<int64_t>() - report.at("parameters").get<int64_t>() ==
          3 * 4 * 64);
    CHECK(report.at("flops") < report.at("flops_before"));
    const Json& quartiles = report.at("time_saved_quartiles");
    CHECK(quartiles[0] <= report.at("time_saved"));
    CHECK(report.at("time_saved") <= quartiles[1]);
    CHECK(report.at("time_pairs") == 31);
    CHECK(report.at("time_beyond_noise") == (quartiles[0] > 0 || quartiles[1] < 0));
    for (const std::string delta :
         {"l2", "l2_per_position", "relative", "cosine", "kl", "loss_delta", "p_value"})
      CHECK(report.at(delta).is_number());
    CHECK(report.at("loss").get<double>() - report.at("loss_before").get<double>() ==
          Approx(report.at("loss_delta").get<double>()).margin(1e-6));
    CHECK(report.at("loss_before").get<double>() ==
          Approx(evaluation(bench, run).at("loss").get<double>()).epsilon(1e-6));
    CHECK(evaluation(bench, out).at("loss").get<double>() ==
          Approx(report.at("loss").get<double>()).epsilon(1e-6));
    CHECK(evaluation(bench, out + "/ckpt/best").at("step") == 5);
    CHECK(names_in(bench / out) == std::set<std::string>{"ckpt", "config.yaml", "data.json",
                                                         "manifest.json", "pruning.csv",
                                                         "pruning.h5", "status.json"});
    CHECK(json_of(bench / out / "manifest.json").at("pruned").at("removed") ==
          report.at("removed"));
    const SafetensorsFile weights(bench / out / "ckpt/last/model.safetensors");
    CHECK((weights.find("blocks.0.attention.head_ids") != nullptr) == slice);
  }
  const auto said = [&](const std::string& from) {
    return object_of(bench.headlab({"ablate", from, "--json"}));
  };
  CHECK(bench.headlab({"generate", "sliced", "--prompt", "The", "--temperature", "0"}).out ==
        bench.headlab({"generate", "masked", "--prompt", "The", "--temperature", "0"}).out);
  const Json masked = said("masked"), sliced = said("sliced");
  REQUIRE(sliced.at("removed") == Json({"0:0", "0:2", "1:1", "1:2", "1:3"}));
  for (size_t n = 0; n < 5; ++n)
    CHECK(masked.at("l2")[n].get<double>() ==
          Approx(sliced.at("l2")[n].get<double>()).epsilon(1e-4));
  // Further pruning counts in original heads; what is gone stays gone.
  CHECK(pruned(bench, "sliced", {"--heads", "0:1,3", "1:0"}).at("removed").empty());
  const Json further =
      pruned(bench, "sliced", {"--heads", "1:0,1,2,3", "--slice", "--out", "bare"});
  CHECK(further.at("removed") == Json({"1:1", "1:2", "1:3"}));
  CHECK(evaluation(bench, "bare").at("loss").get<double>() ==
        Approx(further.at("loss").get<double>()).epsilon(1e-2));
}

TEST_CASE("rounds are written as a curve of loss against heads kept") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  const Json report = pruned(bench, run,
                             {"--fraction", "0.5", "--rounds", "2", "--recompute",
                              "--keep-per-layer", "1", "--out", "half", "--tune", "2"});
  CHECK(report.at("kept") == 4);
  CHECK(report.at("step") == 9);
  REQUIRE(report.at("rounds").size() == 3);
  const auto lines = lines_of(read_bytes(bench / "half/pruning.csv"));
  REQUIRE(lines.size() == 4);
  CHECK(
      lines[0] ==
      "round,kept,parameters,flops_per_token,loss,accuracy,split,examples,tokens,seconds,removed");
  CHECK_THAT(lines[1], Catch::Matchers::StartsWith("0,8,"));
  CHECK_THAT(lines[3], Catch::Matchers::StartsWith("2,4,"));
  const H5File file = H5File::open(bench / "half/pruning.h5");
  const auto group = file.root().group("pruning");
  CHECK(group.dataset("kept").read<double>() == std::vector<double>{8, 6, 4});
  const auto removed = group.dataset("removed").read<uint8_t>();
  CHECK(group.dataset("removed").extent() == H5Extent{3, 2, 4});
  CHECK(std::count(removed.begin(), removed.end(), 1) == 4);
  for (size_t n = 0; n < 3; ++n)
    CHECK(group.dataset("loss").read<double>()[n] == report.at("rounds")[n].at("loss"));
  CHECK(group.dataset("loss").text("units") == "nat");
  // Twice is as once.
  CHECK(pruned(bench, "half", {"--fraction", "0.5"}).at("removed").empty());
  CHECK(pruned(bench, "half", {"--count", "4"}).at("removed").empty());
}

// config.yaml of a run with another setting of `train`.
void set_train(const fs::path& run, const std::string& key, const std::string& value) {
  const std::string config = read_bytes(run / "config.yaml");
  const size_t train = config.find("\ntrain:");
  REQUIRE(train != std::string::npos);
  size_t line = config.find("\n  " + key + ":", train) + 1;
  size_t end = config.find('\n', line) + 1;
  if (line == 0) line = end = config.find('\n', train + 1) + 1;  // an optional one
  write_bytes(run / "config.yaml",
              config.substr(0, line) + "  " + key + ": " + value + "\n" + config.substr(end));
}

TEST_CASE("tuning is logged and saved as training is, on from where the run stood") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  const Json report =
      pruned(bench, run, {"--count", "4", "--rounds", "2", "--tune", "3", "--out", "half"});
  const fs::path half = bench / "half";
  CHECK(names_in(half) == std::set<std::string>{"ckpt", "config.yaml", "data.json", "log.h5",
                                                "manifest.json", "metrics.jsonl", "pruning.csv",
                                                "pruning.h5", "status.json"});
  const Json status = json_of(half / "status.json"), manifest = json_of(half / "manifest.json");
  CHECK(status.at("status") == "finished");
  CHECK(status.at("step") == 11);
  CHECK(manifest.at("status") == "finished");
  CHECK(manifest.at("pruned").at("removed") == report.at("removed"));
  CHECK_THAT(read_bytes(half / "config.yaml"), Contains("steps: 11") && Contains("decay_steps: 5"));
  CHECK(evaluation(bench, "half").at("step") == 11);
  CHECK(evaluation(bench, "half").at("loss").get<double>() ==
        Approx(status.at("metrics").at("val/loss").get<double>()).epsilon(1e-6));

  std::vector<int64_t> steps;
  for (const std::string& line : lines_of(read_bytes(half / "metrics.jsonl"))) {
    const Json row = Json::parse(line);
    steps.push_back(row.at("step"));
    CHECK(row.contains("train/loss"));
    CHECK(row.contains("lr") == (steps.size() > 1));  // the first is before any update
    CHECK(row.contains("val/loss") == std::set<int64_t>{6, 8, 10, 11}.contains(steps.back()));
  }
  CHECK(steps == std::vector<int64_t>{5, 6, 7, 8, 9, 10, 11});
  CHECK(names_in(half / "ckpt") ==
        std::set<std::string>{"best", "last", "step-00000010", "step-00000011"});
  CHECK(fs::exists(half / "ckpt/last/optimizer.safetensors"));

  const H5File log = H5File::open(half / "log.h5");
  CHECK(log.root().text("status") == "finished");
  CHECK(log.root().dataset("scalars/step").read<int64_t>() == steps);
  CHECK(log.root().dataset("eval/step").read<int64_t>() == std::vector<int64_t>{6, 8, 10, 11});
  const auto heads = log.root().group("heads/self");
  CHECK(heads.dataset("step").read<int64_t>() == std::vector<int64_t>{5, 6, 8, 10});
  // Heads that are gone say nothing from their round on.
  const auto entropy = heads.dataset("entropy").read<float>();
  REQUIRE(entropy.size() == 4 * 8);
  for (int64_t row = 0; row < 4; ++row) {
    std::set<std::string> gone;
    for (const int64_t round : {1, 2})
      if (round == 1 || row == 3)
        for (const Json& head : report.at("rounds")[round].at("removed")) gone.insert(head);
    CHECK(gone.size() == (row == 3 ? 4 : 2));
    for (int64_t head = 0; head < 8; ++head)
      CHECK(std::isnan(entropy[row * 8 + head]) ==
            gone.contains(fmt::format("{}:{}", head / 4, head % 4)));
  }
  CHECK(bench.headlab({"inspect", "half"}).code == 0);
}

TEST_CASE("a tuned run that is written sliced ends with the smaller model") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  const Json report = pruned(
      bench, run, {"--count", "4", "--tune", "3", "--out", "small", "--slice", "--batches", "0"});
  for (const std::string checkpoint : {"last", "best", "step-00000008"}) {
    const SafetensorsFile weights(bench / "small/ckpt" / checkpoint / "model.safetensors");
    CHECK(weights.find("blocks.0.attention.head_ids") != nullptr);
  }
  CHECK(evaluation(bench, "small").at("loss").get<double>() ==
        Approx(report.at("loss").get<double>()).epsilon(1e-5));
  CHECK(json_of(bench / "small/manifest.json").at("parameters").at("total") ==
        report.at("parameters"));
}

TEST_CASE("tuning whose time is over says what is left, and the same command does it") {
  const Bench bench;
  const fs::path run = bench.train(kTwoLayers);
  set_train(run, "max_time", "1e-9");
  const Arguments prune{"prune",  run.string(), "--count", "4", "--rounds", "2",
                        "--tune", "2",          "--out",   "o", "--by",     "activation"};
  const Outcome stopped = bench.headlab(prune);
  CHECK(stopped.code == 75);
  CHECK_THAT(stopped.out, Contains("stopped at step 6: train.max_time is over; in round 1 of 2, 1 "
                                   "updates left in it\n"));
  CHECK_THAT(stopped.err, Contains("stopped at step 6; the same command goes on"));
  const Json status = json_of(bench / "o/status.json");
  CHECK(status.at("status") == "stopped");
  CHECK(status.at("step") == 6);
  CHECK(json_of(bench / "o/manifest.json").at("status") == "stopped");
  CHECK(fs::exists(bench / "o/ckpt/step-00000006/optimizer.safetensors"));
  CHECK_FALSE(fs::exists(bench / "o/pruning.h5"));
  CHECK(Json::parse(bench.headlab({"inspect", "o", "--json"}).out).at("status") == "stopped");

  Outcome last = bench.headlab(prune);
  for (int sessions = 2; last.code == 75 && sessions < 12; ++sessions) last = bench.headlab(prune);
  INFO(last.err);
  CHECK(last.code == 0);
  CHECK(json_of(bench / "o/status.json").at("step") == 9);
  CHECK(json_of(bench / "o/manifest.json").at("pruned").at("kept") == 4);
  CHECK_FALSE(fs::exists(bench / "o/tuning"));
}

TEST_CASE("tuning that a signal stops is saved, and the exit code is the signal's") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  Process process(
      Invocation{{"prune", run, "--count", "4", "--tune", "1000000", "--out", "o", "--json"},
                 bench.path(),
                 {{"TERM", "xterm"}, {"NO_COLOR", "1"}},
                 /*terminal=*/true});
  process.wait_for([](const std::string& err) { return err.find("step 1") != err.npos; });
  process.signal(SIGTERM);
  const Json report = [&] {
    const Outcome outcome = process.end();
    CHECK(outcome.code == 143);
    return Json::parse(outcome.out);
  }();
  CHECK(report.at("status") == "stopped");
  CHECK(report.at("reason") == "signal 15");
  CHECK(report.at("kept") == 4);
  const int64_t step = report.at("step");
  CHECK(report.at("updates_left") == 1000005 - step);
  CHECK(json_of(bench / "o/status.json").at("status") == "stopped");
  CHECK(evaluation(bench, "o").at("step") == step);
}

TEST_CASE("tuning that diverges exits 5 and says so") {
  const Bench bench;
  const fs::path run = bench.train(kTwoLayers);
  set_train(run, "lr", "1e30");
  set_train(run, "clip", "0");
  const Outcome outcome =
      bench.headlab({"prune", run.string(), "--count", "4", "--tune", "9", "--out", "o", "--json"});
  CHECK(outcome.code == 5);
  CHECK(Json::parse(outcome.out).at("status") == "diverged");
  CHECK(json_of(bench / "o/status.json").at("status") == "diverged");
}

TEST_CASE("every order prunes to the count that was asked for") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  std::set<Json> choices;
  for (const std::string by : {"importance", "ablation", "activation", "random"}) {
    const Json report = pruned(bench, run, {"--count", "3", "--by", by});
    CHECK(report.at("kept") == 5);
    choices.insert(report.at("removed"));
  }
  CHECK(choices.size() > 1);
  const Json all = pruned(bench, run, {"--fraction", "1"});
  CHECK(all.at("kept") == 0);
  CHECK(all.at("empty_layers") == Json{"0", "1"});
  CHECK(pruned(bench, run, {"--heads", "1:0,1,2,3"}).at("empty_layers") == Json{"1"});
  CHECK_THAT(bench.headlab({"prune", run, "--heads", "1:0,1,2,3"}).out,
             Contains("no head is left in layer 1 (--keep-per-layer 1 keeps one in each)"));
  CHECK(pruned(bench, run, {"--fraction", "0"}).at("kept") == 8);
  const Json two = pruned(bench, run, {"--count", "6", "--keep-per-layer", "1"});
  CHECK(two.at("kept") == 2);
  CHECK(two.at("empty_layers").empty());
}

TEST_CASE("ablation tells every head apart and writes what it found") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  const Json zero = object_of(bench.headlab({"ablate", run, "--json"}));
  CHECK(zero.at("mode") == "zero");
  CHECK(zero.at("removed").size() == 8);
  CHECK(zero.at("removed")[5] == "1:1");
  // What pruning one independent head does is what ablating it does.
  const Json alone = pruned(bench, run, {"--heads", "1:1"});
  for (const std::string delta : {"l2", "kl", "loss_delta", "cosine"})
    CHECK(zero.at(delta)[5].get<double>() ==
          Approx(alone.at(delta).get<double>()).epsilon(1e-3).margin(1e-7));

  const Json all = object_of(bench.headlab(
      {"ablate", run, "--mode", "all", "--pairs", "--all-but-one", "--out", "a.h5", "--json"}));
  CHECK(all.at("zero").at("l2") == zero.at("l2"));
  CHECK(all.at("mean").at("pairs").at("removed").size() == 28);
  CHECK(all.at("uniform").at("all_but_one").at("stays")[3] == "0:3");
  CHECK(all.at("uniform").at("all_but_one").at("removed")[3] == Json({"0:0", "0:1", "0:2"}));

  const auto group = H5File::open(bench / "a.h5").root().group("ablation/self");
  CHECK(group.dataset("mode").read_text() ==
        std::vector<std::string>{"zero", "mean", "position_mean", "uniform"});
  const auto l2 = group.dataset("l2").read<double>();
  CHECK(group.dataset("l2").extent() == H5Extent{4, 2, 4});
  for (size_t n = 0; n < 8; ++n) CHECK(l2[n] == zero.at("l2")[n]);
  CHECK(group.dataset("pair_l2").extent() == H5Extent{4, 2, 4, 2, 4});
  const auto pairs = group.dataset("pair_l2").read<double>();
  CHECK(std::isnan(pairs[0]));  // a head and itself
  CHECK(pairs[1] == pairs[8]);  // 0:0 with 0:1, and back
  CHECK(group.dataset("only_loss_delta").text("units") == "nat");
  CHECK(fs::exists(fs::path(run) / "ablation.h5"));

  const Outcome words = bench.headlab({"ablate", run});
  CHECK(words.code == 0);
  CHECK(lines_of(words.out).size() == 1 + 2 + 8 + 9 + 1);
  CHECK_THAT(words.out, Contains("whole model: loss") && Contains("1:3"));
}

TEST_CASE("what cannot be pruned is refused and leaves nothing behind") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  const auto before = snapshot(bench.path());
  const auto check = [&](Arguments options, int code, const std::string& said) {
    options.insert(options.begin(), "prune");
    check_refusal(bench.headlab(options), code, {said});
    CHECK(snapshot(bench.path()) == before);
  };
  check({run}, 2, "one of --heads L:h,h ..., --count N and --fraction F");
  check({run, "--count", "2", "--fraction", "0.5"}, 2, "one of --heads");
  check({run, "--fraction", "1.5"}, 2, "must lie in 0 to 1");
  check({run, "--fraction", "-0.5"}, 2, "must lie in 0 to 1");
  check({run, "--fraction", "nan"}, 2, "--fraction: must be a number");
  check({run, "--count", "9"}, 2, "8 heads");
  check({run, "--heads", "2:0", "--out", "x"}, 2, "layers 0 to 1");
  check({run, "--heads", "1:4", "--out", "x"}, 2, "heads 0 to 3");
  check({run, "--heads", "nonsense", "--out", "x"}, 2, "layer:head");
  check({run, "--heads", "1:1", "--rounds", "2"}, 2, "--rounds");
  check({run, "--count", "1", "--by", "taste"}, 2, "--by");
  check({run, "--count", "1", "--slice"}, 2, "--out");
  check({run, "--count", "1", "--tune", "2"}, 2, "--out");
  check({run, "--count", "1", "--split", "test"}, 3, "no examples of split test");
  check({run, "--count", "1", "--out", run}, 4, "a run is there already");
  check({"nothing", "--count", "1"}, 4, "not a run");
  check_refusal(bench.headlab({"ablate", run, "--out", "no/such/place.h5"}), 4,
                {"no/such/place.h5: cannot be written: there is no directory no/such"});
  check_refusal(bench.headlab({"ablate", run, "--mode", "maybe"}), 2, {"--mode"});
  CHECK(snapshot(bench.path()) == before);
}

TEST_CASE("a checkpoint of another shape is refused by name") {
  const Bench bench;
  const fs::path run = bench.train(kTwoLayers), other = bench.train({"model.layers=1"});
  fs::copy_file(other / "config.yaml", run / "config.yaml", fs::copy_options::overwrite_existing);
  const Outcome outcome = bench.headlab({"prune", run.string(), "--count", "1"});
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Contains("the checkpoint does not fit the model") &&
                              Contains("blocks.1.attention.q.weight"));
}

}  // namespace
}  // namespace headlab::testing::test_command_prune
