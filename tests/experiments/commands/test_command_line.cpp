// The commands that tell of the program, of configs and of logs.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_line {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  const auto lines = lines_of(headlab({"--help"}).out);
  auto line = std::find(lines.begin(), lines.end(), "Subcommands:");
  REQUIRE(line != lines.end());
  while (++line != lines.end() && line->starts_with("  "))
    names.push_back(line->substr(2, line->find(' ', 2) - 2));
  return names;
}

TEST_CASE("list and describe tell of every kind of heads") {
  const Json kinds = Json::parse(headlab({"list", "--json"}).out);
  const auto lines = lines_of(headlab({"list"}).out);
  CHECK(lines.size() == kinds.size());
  CHECK(kinds.size() == build::kVariantStems.size());
  const std::string table = headlab({"describe", "--table"}).out;
  for (const auto& [kind, summary] : kinds.items()) {
    INFO(kind);
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const std::string& text) {
      return text.starts_with(kind + " ");
    });
    REQUIRE(line != lines.end());
    CHECK_THAT(*line, Contains(summary.get<std::string>()));
    CHECK_THAT(table, Contains("| `" + kind + "` | " + summary.get<std::string>() + " | "));

    const Json object = Json::parse(headlab({"describe", kind, "--json"}).out);
    CHECK(object.at("kind") == kind);
    CHECK(object.at("summary") == summary);
    CHECK_FALSE(object.at("parameters").empty());
    CHECK(object.at("traits").is_object());
    const std::string text = headlab({"describe", kind}).out;
    for (const Json& option : object.at("options")) {
      for (const std::string key : {"name", "type", "default", "limits", "help"})
        CHECK(option.contains(key));
      CHECK_THAT(text, Contains(option.at("name").get<std::string>()));
    }
  }
}

TEST_CASE("version names what the program is built on") {
  const Json object = Json::parse(headlab({"version", "--json"}).out);
  CHECK(object.at("headlab") == build::kVersion);
  for (const std::string key : {"torch", "hdf5", "compiler", "build"})
    CHECK_FALSE(object.at(key).get<std::string>().empty());
  CHECK(object.at("cuda").is_boolean());
  CHECK(headlab({"--version"}).out == std::string(build::kVersion) + "\n");
}

TEST_CASE("help of every command exits 0 and shows an example") {
  const auto names = command_names();
  for (const std::string name : {"run", "config", "eval", "generate", "forward", "layer", "check",
                                 "inspect", "repair", "list", "describe", "completion", "version"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  for (const std::string& name : names) {
    INFO(name);
    const Outcome outcome = headlab({name, "--help"});
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    CHECK_THAT(outcome.out, Contains("Usage: headlab " + name) && Contains("\nExample:\n  ") &&
                                Contains("headlab " + name));
  }
}

TEST_CASE("completion scripts parse and complete commands and options") {
  const Scratch scratch;
  const std::string script = (scratch / "headlab.bash").string();
  write_bytes(script, headlab({"completion", "bash"}).out);
  const auto complete = [&](const std::string& words, int at) {
    const Outcome outcome =
        Process({.arguments = {"-c", "source " + script + "; COMP_WORDS=(" + words +
                                         "); COMP_CWORD=" + std::to_string(at) +
                                         "; _headlab; echo ${COMPREPLY[@]}"},
                 .program = "bash"})
            .end();
    CHECK(outcome.err.empty());
    return outcome.out;
  };
  CHECK(complete("headlab ru", 1) == "run\n");
  CHECK(complete("headlab run --dr", 2) == "--dry-run\n");
  CHECK(complete("headlab layer --f", 2) == "--forward-only\n");
  CHECK_THAT(complete("headlab ''", 1), Contains("generate") && Contains("version"));

  CHECK_THAT(headlab({"completion", "zsh"}).out, StartsWith("autoload") && Contains("_headlab"));
  const std::string fish = headlab({"completion", "fish"}).out;
  for (const std::string& name : command_names())
    CHECK_THAT(fish, Contains("__fish_use_subcommand -a " + name + " "));
}

TEST_CASE("config prints what a file resolves to and its shortest form and the schema") {
  const Bench bench;
  const Outcome resolved = bench.headlab({"config", "tiny.yaml", "model.layers=3"});
  CHECK(resolved.code == 0);
  CHECK_THAT(resolved.out, Contains("layers: 3") && Contains("schedule: cosine") &&
                               Contains((bench / "text.txt").string()));
  write_bytes(bench / "again.yaml", resolved.out);
  CHECK(bench.headlab({"config", "again.yaml"}).out == resolved.out);

  const std::string minimal =
      bench.headlab({"config", "tiny.yaml", "model.layers=3", "--minimal"}).out;
  CHECK_THAT(minimal, Contains("layers: 3") && !Contains("schedule"));
  CHECK(minimal.size() < resolved.out.size() / 2);
  write_bytes(bench / "short.yaml", minimal);
  CHECK(bench.headlab({"config", "short.yaml"}).out == resolved.out);
  std::filesystem::create_directory(bench / "elsewhere");
  write_bytes(bench / "elsewhere/short.yaml", minimal);  // its data lie where they lay
  CHECK(bench.headlab({"config", "elsewhere/short.yaml"}).out == resolved.out);

  const Json schema = Json::parse(headlab({"config", "--schema"}).out);
  CHECK(schema.at("type") == "object");
  for (const std::string key : {"name", "seed", "data", "model", "train", "log", "extends"})
    CHECK(schema.at("properties").contains(key));
  CHECK_FALSE(schema.value("additionalProperties", true));
}

TEST_CASE("inspect and repair tell what is in the log of a finished run") {
  const Bench bench;
  const fs::path run = bench.train();
  const auto files = snapshot(run);
  const Json log = Json::parse(headlab({"inspect", run.string(), "--json"}).out);
  CHECK(log.at("status") == "finished");
  CHECK(log.at("needs_repair") == false);
  CHECK(log.at("title") == "tiny");
  std::map<std::string, int64_t> records;
  for (const Json& group : log.at("groups"))
    if (group.contains("records")) records[group.at("path")] = group.at("records");
  CHECK(records["/scalars"] == 6);
  CHECK(records["/eval"] == 3);
  CHECK(records["/heads/self"] == 3);
  CHECK_THAT(headlab({"inspect", (run / "log.h5").string()}).out,
             Contains("/scalars: 6 records, the last of step 5"));
  const Outcome repair = headlab({"repair", run.string()});
  CHECK(repair.code == 0);
  CHECK_THAT(repair.out, Contains("log.h5: nothing to repair"));
  CHECK((snapshot(run) == files));
}

TEST_CASE("validate says what a run would cost", "[validate]") {
  const std::string config = (kProject / "configs/char_mha.yaml").string();
  const Outcome outcome = headlab({"validate", config, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(lines_of(outcome.out).size() == 1);
  const Json object = Json::parse(outcome.out);
  CHECK(object.at("parameters") == 804096);
  // Twice the weights that multiply a token (all but the 64 x 128 positions and the 9 norms of
  // 128), and for scores and values 2 T D each a layer, causal halved.
  const int64_t multiplied = 804096 - 64 * 128 - 9 * 128;
  CHECK(object.at("flops_per_token").get<double>() ==
        Approx(2.0 * multiplied + 4 * 2 * 64 * 128).epsilon(0.02));
  CHECK(object.at("attention_bytes").get<int64_t>() > 0);
  CHECK(headlab({"validate", config}).code == 0);
}

TEST_CASE("validate refuses what run would refuse", "[validate]") {
  const Bench bench;
  check_refusal(bench.headlab({"validate", "tiny.yaml", "model.heads=3"}), 2, {"model.heads"});
  check_refusal(bench.headlab({"validate", "tiny.yaml", "data.path=no_such.txt"}), 3,
                {"no_such.txt"});
  check_refusal(bench.headlab({"validate", "tiny.yaml", "log.attention.max_bytes=10"}), 2,
                {"log.attention", "max_bytes"});
  CHECK(names_in(bench.path()) == std::set<std::string>{"text.txt", "tiny.yaml"});
}

}  // namespace
}  // namespace headlab::testing::test_command_line
