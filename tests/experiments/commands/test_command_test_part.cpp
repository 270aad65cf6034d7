// The test part of the data from outside: asked for by data.test, measured when training ends, and
// by every command that takes a split.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_test_part {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const std::string kAsked = "data.test=0.05";

class Asked : public TrainedBench {
 public:
  static const Asked& instance() {
    static const Asked only;
    return only;
  }

 private:
  Asked() { run_ = train({kAsked, "log.stats=[all]"}); }
};

std::vector<Json> rows_of(const fs::path& run) {
  std::vector<Json> rows;
  for (const std::string& line : lines_of(read_bytes(run / "metrics.jsonl"))) {
    rows.push_back(Json::parse(line));
    for (const char* clock : {"wall_s", "tokens_per_s"}) rows.back().erase(clock);
  }
  return rows;
}

TEST_CASE("the end of a run has the numbers that eval has of its test part") {
  const Asked& bench = Asked::instance();
  const fs::path run = bench.run();
  const Json eval = bench.json({"eval", "--split", "test"});
  const Json metrics = json_of(run / "status.json").at("metrics");
  const auto rows = rows_of(run);
  REQUIRE(rows.size() == 6);
  CHECK(eval.at("split") == "test");
  for (const std::string name : {"loss", "accuracy", "perplexity", "tokens", "examples"}) {
    INFO(name);
    CHECK(metrics.at("test/" + name) == rows.back().at("test/" + name));
    CHECK(metrics.at("test/" + name).get<double>() == Approx(eval.at(name).get<double>()));
    for (int step = 0; step < 5; ++step) CHECK_FALSE(rows[step].contains("test/" + name));
  }
  // Of 226 windows of 8 characters to train on and 25 to validate with 13 are the twentieth part.
  CHECK(eval.at("examples") == 13);
  CHECK(bench.json({"eval"}).at("examples") == 12);
  CHECK(eval.at("loss") != bench.json({"eval"}).at("loss"));

  const Outcome again = bench.headlab({"run", "tiny.yaml", kAsked, "log.stats=[all]"});
  CHECK(again.code == 0);
  CHECK_THAT(again.out, Contains(bench.run()) && Contains("val loss ") &&
                            Contains("\ntest loss ") && Contains(" over 104 tokens"));
  check_refusal(bench.headlab({"eval", bench.train().string(), "--split", "test"}), 3,
                {"no examples of split test"});
}

TEST_CASE("commands that take a split take the test part") {
  const Asked& bench = Asked::instance();
  for (const Arguments& command :
       {Arguments{"ablate", "--split", "test"}, {"prune", "--heads", "0:1", "--split", "test"}})
    CHECK(bench.json(command).at("split") == "test");
  bench.json({"analyze", "--split", "test"});
  CHECK(fs::exists(fs::path(bench.run()) / "analysis-test.h5"));
}

TEST_CASE("validate counts the examples of the test part") {
  const Bench bench;
  const auto validated = [&](const Arguments& more) {
    Arguments arguments{"validate", "tiny.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return bench.headlab(arguments).out;
  };
  CHECK_THAT(validated({}), Contains(" training and 25 validation examples\n"));
  CHECK_THAT(validated({kAsked}),
             Contains(" training and 12 validation examples, 13 of a test part\n"));
  CHECK_FALSE(Json::parse(validated({"--json"})).contains("test_examples"));
  CHECK(Json::parse(validated({kAsked, "--json"})).at("test_examples") == 13);
  check_refusal(bench.headlab({"validate", "tiny.yaml", "data.test=0.1"}), 2,
                {"data.test", "validation", "name a smaller share"});
}

// Taken up at step 4, without its rows: the log's have no test part.
TEST_CASE("a run whose rows were lost has the test part in its last row alone") {
  const Bench bench;
  const fs::path run = bench.train({kAsked});
  const auto before = rows_of(run);
  fs::remove_all(run / "ckpt/step-00000005");
  for (const char* link : {"last", "best"}) {
    fs::remove(run / "ckpt" / link);
    fs::create_directory_symlink("step-00000004", run / "ckpt" / link);
  }
  fs::remove(run / "metrics.jsonl");
  auto status = json_of(run / "status.json");
  status["status"] = "stopped", status["step"] = 4;
  write_bytes(run / "status.json", status.dump());
  const Outcome outcome = bench.headlab({"run", "tiny.yaml", kAsked});
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("metrics.jsonl has lost 5 rows"));
  const auto rows = rows_of(run);
  REQUIRE(rows.size() == 6);
  for (size_t n = 0; n < rows.size(); ++n)
    for (const auto& [name, value] : rows[n].items()) {
      INFO(n << " " << name);
      CHECK(value.get<double>() == Approx(before[n].at(name).get<double>()).epsilon(1e-5));
    }
  CHECK(rows.back().contains("test/loss"));
}

}  // namespace
}  // namespace headlab::testing::test_command_test_part
