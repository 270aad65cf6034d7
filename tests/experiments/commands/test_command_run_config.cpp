// `headlab run` from outside: what it makes of its config.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_run_config {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

TEST_CASE("a run's directory is a function of its settings and not of threads") {
  const Bench bench;
  const std::string name = bench.train().filename();
  const std::string hash = name.substr(0, 8);
  CHECK(bench.train({"seed=8"}).filename() == hash + "-s8");
  CHECK(bench.train({"train.threads=1"}).filename() == name);
  CHECK(bench.train({"seed=7"}).filename() == name);
  CHECK(bench.train({"train.lr=0.002"}).filename() != name);
  CHECK(bench.train({"model.attention={kind: mha, bias: true}"}).filename() != name);
  CHECK(bench.train({"train.checkpoint.every=3"}).filename() != name);
  CHECK(names_in(bench / "runs/tiny").size() == 5);

  write_bytes(bench / "same.yaml",
              replaced(replaced(kTinyConfig, "seed: 7\n", ""), "  batch: 4\n", "") +
                  "extends: named.yaml\n");
  write_bytes(bench / "named.yaml", "seed: 7\ntrain: {batch: 4}\n");
  CHECK_THAT(bench.headlab({"run", "same.yaml"}).err, Contains("finished"));
}

TEST_CASE("the file that is run names the run unless it says a name itself") {
  const Bench bench;
  const auto named = [&](const std::string& file, Arguments overrides = {}) {
    overrides.insert(overrides.begin(), {"config", file});
    const Outcome outcome = bench.headlab(overrides);
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    return lines_of(outcome.out).at(0);
  };
  write_bytes(bench / "mine.yaml", "extends: tiny.yaml\n");
  CHECK(named("tiny.yaml") == "name: tiny");
  CHECK(named("mine.yaml") == "name: mine");
  CHECK(named((bench / "mine.yaml").string(), {"seed=3"}) == "name: mine");
  CHECK(named("mine.yaml", {"name=other"}) == "name: other");
  write_bytes(bench / "2024.yaml", replaced(kTinyConfig, "name: tiny\n", ""));
  CHECK(named("2024.yaml") == "name: \"2024\"");
  write_bytes(bench / "said.yaml", "extends: mine.yaml\nname: said-itself\n");
  CHECK(named("said.yaml") == "name: said-itself");
  CHECK(bench.headlab({"run", "mine.yaml"}).code == 0);
  CHECK(fs::exists(bench / "runs/mine"));

  write_bytes(bench / "my run.yaml", "extends: tiny.yaml\n");
  const Outcome refused = bench.headlab({"run", "my run.yaml"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err,
             Contains("my run.yaml: name: ") && Contains("'my run'") && Contains("write name: <"));
  CHECK(bench.headlab({"run", "my run.yaml", "name=mine"}).code == 0);
}

TEST_CASE("paths in a config start at the config and those on the command line at the caller") {
  const Bench bench;
  fs::create_directory(bench / "deep");
  fs::rename(bench / "tiny.yaml", bench / "deep/tiny.yaml");
  const Outcome missing = bench.headlab({"run", "deep/tiny.yaml", "--dry-run"});
  CHECK(missing.code == 3);
  CHECK_THAT(missing.err, Contains("deep/text.txt"));
  const Outcome found = bench.headlab({"run", "deep/tiny.yaml", "data.path=text.txt"});
  CHECK(found.code == 0);
  CHECK(fs::exists(bench / "runs/tiny"));
}

TEST_CASE("the config that a run keeps reads back to the same values and run") {
  const Bench bench;
  const std::string text = (bench / "text.txt").string();
  const fs::path run = bench.train({"data.path=" + text, "train.lr=3e-4", "train.eps=1e-9"});
  const std::string kept = (run / "config.yaml").string();
  const Outcome read_back = headlab({"config", kept});
  CHECK(read_back.code == 0);
  CHECK(read_back.out == read_bytes(kept));
  const Outcome again = bench.headlab({"run", kept});
  CHECK(again.code == 0);
  CHECK_THAT(again.err, Contains("finished"));
  CHECK(names_in(bench / "runs/tiny").size() == 1);
  CHECK(bench.headlab({"run", kept, "--out", "fresh", "--dry-run"}).code == 0);
}

TEST_CASE("a model that would see its targets is refused before it trains") {
  const Bench bench;
  const auto refused = [&](const Arguments& settings) {
    Arguments arguments{"run", "tiny.yaml"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const Outcome outcome = bench.headlab(arguments);
    CHECK(outcome.code == 2);
    CHECK_FALSE(fs::exists(bench / "runs"));
    return outcome.err;
  };
  CHECK_THAT(refused({"model.kind=encoder"}), Contains("model.kind: an encoder sees what follows"));
  CHECK_THAT(refused({"model.causal=false"}), Contains("model.causal: false shows each token"));
  CHECK_THAT(refused({"data=induction", "model.kind=encoder"}), Contains("model.kind: "));
  CHECK_THAT(refused({"data=compression"}),
             Contains("tiny.yaml:") && Contains("model.head: must be bottleneck"));
  CHECK_THAT(refused({"model.head=bottleneck"}), Contains("model.head: bottleneck shows each"));
  CHECK_THAT(refused({"data=compression", "model={kind: encoder, layers: 1}"}),
             Contains("model.kind: an encoder would copy"));
  const Outcome compressed =
      bench.headlab({"run", "tiny.yaml", "data=compression", "model.head=bottleneck", "--dry-run"});
  INFO(compressed.err);
  CHECK(compressed.code == 0);
  const Outcome outcome = bench.headlab({"run", "tiny.yaml", "data={kind: first_token, context: 8}",
                                         "model.causal=false", "--dry-run"});
  CHECK(outcome.code == 0);  // what it is asked stands not in what it reads
}

TEST_CASE("a dry run checks everything and writes nothing") {
  const Bench bench;
  const auto files = snapshot(bench.path());
  const Outcome outcome = bench.headlab({"run", "tiny.yaml", "--dry-run"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains(" parameters"));
  CHECK((snapshot(bench.path()) == files));
}

// What there is in configs, with the first lines of its texts alone: the text as it is takes
// minutes to be measured by every kind.
void shortened_configs(const fs::path& folder) {
  constexpr int kLines = 150;
  fs::copy(kProject / "configs", folder, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(folder / "data")) {
    if (!entry.is_regular_file() || entry.path().extension() == ".gz") continue;
    const std::string text = read_bytes(entry.path());
    size_t end = 0;
    for (int line = 0; line < kLines && end != std::string::npos; ++line)
      end = text.find('\n', end + 1);
    write_bytes(entry.path(), text.substr(0, end));
  }
}

// Overrides for the tasks that draw their examples, whose published sizes take minutes: few of them
// show as well that a config runs.
std::vector<std::string> fewer_examples(const std::string& config) {
  for (const char* read : {"char_", "cifar10_", "mlm_", "mnist_", "multi30k_"})
    if (config.starts_with(read)) return {};
  return {"data.eval_examples=16", "train.batch=8"};
}

std::vector<std::string> names_of_configs() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kProject / "configs"))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  CHECK(names.size() > 60);
  return names;
}

void check_that_they_run(const std::vector<std::string>& names) {
  const Scratch scratch;
  shortened_configs(scratch / "configs");
  for (const auto& name : names) {
    const fs::path config =
        (name == "char_mha" ? kProject : scratch.path()) / "configs" / (name + ".yaml");
    std::vector<std::string> command{
        "run",           config.string(),       "--out", (scratch / "runs").string(), "--json",
        "train.steps=2", "train.eval_batches=1"};
    for (const auto& fewer : fewer_examples(name)) command.push_back(fewer);
    const Outcome outcome = headlab(command);
    INFO(config << ": " << outcome.err);
    if (outcome.code == 3 && outcome.err.find("scripts/data ") != std::string::npos) {
      skip(outcome.err);
      continue;
    }
    REQUIRE(outcome.code == 0);
    const Json result = Json::parse(outcome.out);
    CHECK(result.at("status") == "finished");
    CHECK(result.at("step") == 2);
    CHECK(result.at("val/loss").is_number());
  }
}

TEST_CASE("every config in configs runs", "[.slow][whole_training]") {
  check_that_they_run(names_of_configs());
}

TEST_CASE("every config in configs can be read, and one of each sort runs", "[whole_training]") {
  for (const auto& name : names_of_configs()) {
    const Outcome outcome = headlab({"config", (kProject / "configs" / (name + ".yaml")).string()});
    INFO(name << ": " << outcome.err);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.out, Catch::Matchers::StartsWith("name: " + name + "\n"));
  }
  check_that_they_run({"char_mha", "induction_mha", "mlm_mha"});
}

}  // namespace
}  // namespace headlab::testing::test_command_run_config
