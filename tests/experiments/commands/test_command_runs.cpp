// How commands find the run that is meant.
#include <chrono>

#include "tests/command_testing.h"

namespace headlab::testing::test_command_runs {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// As if its status had been written so long ago.
void age(const fs::path& run, std::chrono::hours hours) {
  fs::last_write_time(run / "status.json", fs::file_time_type::clock::now() - hours);
}

// Three runs, the oldest first.
std::vector<fs::path> three_runs(const Bench& bench) {
  const std::vector<fs::path> runs{bench.train(), bench.train({"seed=8"}),
                                   bench.train({"model.attention.kind=moh", "tag=night"})};
  for (size_t i = 0; i < runs.size(); ++i) age(runs[i], std::chrono::hours(3 * (3 - i)));
  return runs;
}

TEST_CASE("@ is the newest run below runs/, @2 the one before it, and what was taken is said") {
  const Bench bench;
  const auto runs = three_runs(bench);
  for (const auto& [word, run] : {std::pair("@", runs[2]), std::pair("@2", runs[1]),
                                  std::pair("@3/ckpt/last", runs[0] / "ckpt/last")}) {
    const Outcome outcome = bench.headlab({"eval", word, "--json"});
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, Contains(std::string(word) + " is " +
                                     run.lexically_relative(bench.path()).string()));
    CHECK(bench.headlab({"eval", run.string(), "--json"}).out == outcome.out);
  }
  check_refusal(bench.headlab({"eval", "@4"}), 4, {"@4", "only 3 runs"});
}

TEST_CASE("without runs @ says how to make one") {
  const Bench bench;
  check_refusal(bench.headlab({"generate", "@"}), 4, {"no run below", "run CONFIG"});
}

TEST_CASE(
    "a folder with one run is that run, one with several lists them and what sets them apart") {
  const Bench bench;
  const fs::path first = bench.train();
  const Outcome one = bench.headlab({"eval", "runs/tiny", "--json"});
  REQUIRE(one.code == 0);
  CHECK_THAT(one.err, Contains("runs/tiny is " + fs::relative(first, bench.path()).string()));
  const fs::path second = bench.train({"model.attention.kind=moh", "seed=8"});
  const Outcome several = bench.headlab({"eval", "runs/tiny"});
  CHECK(several.code == 4);
  const auto lines = lines_of(several.err);
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], Contains("runs/tiny: holds 2 runs"));
  const auto& of_second = second < first ? lines[1] : lines[2];
  CHECK_THAT(of_second, Contains(fs::relative(second, bench.path()).string()) &&
                            Contains("moh, seed 8, finished, just now") &&
                            Contains("model.attention.kind=moh"));
}

TEST_CASE("runs lists what lies below runs/, the newest first") {
  const Bench bench;
  const auto trained = three_runs(bench);
  const Outcome stopped = bench.headlab({"run", "tiny.yaml", "train.max_time=1e-9", "tag=short"});
  REQUIRE(stopped.code == 75);
  const Outcome cut = bench.headlab(
      {"prune", trained[0].string(), "--heads", "0:1", "--out", "runs/one_head", "--json"});
  INFO(cut.err);
  REQUIRE(cut.code == 0);
  age(bench / "runs/one_head", std::chrono::hours(100));
  const Json listed = Json::parse(bench.headlab({"runs", "--json"}).out).at("runs");
  REQUIRE(listed.size() == 5);
  std::vector<std::string> labels;
  for (const Json& run : listed) labels.push_back(run.at("label"));
  CHECK((labels == std::vector<std::string>{"tiny (mha) short", "tiny (moh) night", "tiny (mha)",
                                            "tiny (mha)", "one_head (mha)"}));
  CHECK(listed[0].at("status") == "stopped");
  CHECK(listed[0].at("step") == 1);
  CHECK(listed[0].at("steps") == 5);
  CHECK(listed[2].at("run") == trained[1].string());
  CHECK(listed[2].at("seed") == 8);
  CHECK(listed[2].at("val/loss") ==
        json_of(trained[1] / "status.json").at("metrics").at("val/loss"));
  CHECK(listed[2].at("bytes").get<int64_t>() > 10'000);
  const auto lines = lines_of(bench.headlab({"runs"}).out);
  REQUIRE(lines.size() == 6);
  CHECK_THAT(lines[1], Contains("@ ") && Contains("1/5") && Contains("runs/tiny/"));
  CHECK_THAT(lines[3], Contains("@3") && Contains("finished"));
  check_refusal(bench.headlab({"runs", "elsewhere"}), 4, {"elsewhere: there is no such folder"});
}

TEST_CASE("a folder of damaged runs can be listed all the same") {
  const Bench bench;
  const fs::path run = bench.train();
  write_bytes(run / "config.yaml", "name: [");
  write_bytes(run / "status.json", "{");
  const Json listed = Json::parse(bench.headlab({"runs", "--json"}).out).at("runs");
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].at("status") == "damaged");
  CHECK(listed[0].at("name") == run.filename().string());
}

}  // namespace
}  // namespace headlab::testing::test_command_runs
