// `headlab run` from outside: what it prints.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_run_output {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

TEST_CASE("a run says that its maps have ended and that its log cannot be read along") {
  const Bench bench;
  const Outcome outcome = bench.headlab({"run", "tiny.yaml", "log.attention.every=1",
                                         "log.attention.max_bytes=600", "log.swmr=false"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("attention maps end at step 2: log.attention.max_bytes, 600, "
                                   "is reached"));
  CHECK_THAT(outcome.err, Contains("log.swmr is false"));
}

TEST_CASE("a run prints its result on stdout and everything else on stderr") {
  const Bench bench;
  const Outcome text = bench.headlab({"run", "tiny.yaml", "--out", "text"});
  const fs::path run = only_entry(bench / "text/tiny");
  const auto lines = lines_of(text.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == (fs::canonical(bench.path()) / "text/tiny" / run.filename()).string());
  CHECK_THAT(lines[1], Catch::Matchers::StartsWith("finished at step 5, val loss "));
  CHECK_THAT(text.err, Contains("step 5/5") && !Contains("\r") && !Contains("\x1b"));

  const Outcome object = bench.headlab({"run", "tiny.yaml", "--out", "json", "--json"});
  CHECK(lines_of(object.out).size() == 1);
  const Json result = Json::parse(object.out);
  CHECK(result.at("status") == "finished");
  CHECK(result.at("step") == 5);
  CHECK(fs::equivalent(result.at("run").get<std::string>(), only_entry(bench / "json/tiny")));
  CHECK(result.at("val/loss") == json_of(run / "status.json").at("metrics").at("val/loss"));
}

TEST_CASE("a run begins with what it trains, and ends with what comes next, to be pasted") {
  const Bench bench;
  const Outcome outcome = Process({.arguments = {"run", "tiny.yaml"},
                                   .directory = bench.path(),
                                   .environment = {{"HEADLAB_COMMAND", "../scripts/headlab"},
                                                   {"CUDA_VISIBLE_DEVICES", ""}}})
                              .end();
  REQUIRE(outcome.code == 0);
  const auto lines = lines_of(outcome.err);
  CHECK_THAT(lines.at(0), Contains("tiny.yaml: mha heads, char data, cpu, "));
  const auto run = only_entry(bench / "runs/tiny").lexically_relative(bench.path()).string();
  const std::vector<std::string> next(lines.end() - 3, lines.end());
  CHECK_THAT(next[0], Contains("next: ../scripts/report " + run + " -o report.html"));
  CHECK_THAT(next[1], Contains(" ../scripts/headlab generate " + run));
  CHECK_THAT(next[2], Contains(" ../scripts/headlab ablate " + run));
  const Outcome stopped = bench.headlab({"run", "tiny.yaml", "tag=short", "train.max_time=1e-9"});
  CHECK_THAT(lines_of(stopped.err).back(), Contains("stopped at step 1; the same command goes on"));
}

TEST_CASE("on a terminal progress is one live line and without colours where they are unwanted") {
  const Bench bench;
  const auto run = [&](const std::string& out, std::map<std::string, std::string> environment) {
    return Process({{"run", "tiny.yaml", "--out", out}, bench.path(), environment, true}).end();
  };
  const Outcome colored = run("a", {{"TERM", "xterm"}, {"NO_COLOR", ""}});
  CHECK_THAT(colored.err, Contains("\r") && Contains("\x1b[2mstep"));
  CHECK(colored.err.ends_with("\n"));
  CHECK(lines_of(colored.out).size() == 2);
  const Outcome plain = run("b", {{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  CHECK_THAT(plain.err, Contains("\r") && Contains("step 5/5") && !Contains("\x1b[2m"));
  const Outcome dumb = run("c", {{"TERM", "dumb"}});
  CHECK_THAT(dumb.err, Contains("step 5/5") && !Contains("\r") && !Contains("\x1b"));
}

TEST_CASE("a warmup that is longer than the run is told once, by validate too") {
  const Bench bench;
  const auto count = [](const std::string& text) {
    size_t found = 0;
    for (const auto& line : lines_of(text))
      found += line.find("train.lr 0.001 is never reached") != line.npos;
    return found;
  };
  for (const std::string command : {"run", "validate"}) {
    const Outcome longer = bench.headlab({command, "tiny.yaml", "train.warmup=9"});
    CHECK(longer.code == 0);
    CHECK(count(longer.err) == 1);
    CHECK(count(bench.headlab({command, "tiny.yaml"}).err) == 0);
  }
}

}  // namespace
}  // namespace headlab::testing::test_command_run_output
