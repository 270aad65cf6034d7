// The commands that tell of the program, of configs and of logs.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_line {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

// What describe says, asked once by the cases of this file.
const std::string& described(const Arguments& words) {
  static std::map<Arguments, std::string> said;
  std::string& text = said[words];
  if (!text.empty()) return text;
  Arguments arguments{"describe"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  const Outcome outcome = headlab(arguments);
  INFO(words.at(0) << ": " << outcome.err);
  REQUIRE(outcome.code == 0);
  return text = outcome.out;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  std::string group;
  for (const std::string& line : lines_of(headlab({"--help"}).out)) {
    if (line.ends_with(':')) group = line;
    const bool listed = group == "Train:" || group == "Look:" || group == "Cut:" ||
                        group == "Exchange:" || group == "Extend:";
    if (listed && line.starts_with("  ") && line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

TEST_CASE("the help sorts commands by what they are for") {
  const std::string help = headlab({"--help"}).out;
  size_t last = 0;
  for (const std::string place :
       {"\nTrain:\n", "\n  run ", "\nLook:\n", "\n  analyze ", "\nCut:\n", "\n  prune ",
        "\nExchange:\n", "\n  import ", "\nExtend:\n", "\n  describe "}) {
    INFO(place);
    const size_t found = help.find(place, last);
    REQUIRE(found != help.npos);
    last = found;
  }
}

TEST_CASE("describe explains sections of a config, its keys and the kinds of data") {
  CHECK_THAT(described({"train"}),
             StartsWith("train: how it is trained\n") &&
                 Contains("lr                 number (default 0.001, > 0)\n") &&
                 Contains("cosine | linear") && Contains("checkpoint.every"));
  CHECK_THAT(described({"log"}), Contains("attention.probes") && !Contains("lr "));
  CHECK_THAT(described({"char"}), StartsWith("data.kind: char: ") && Contains("path") &&
                                      Contains("train_share") && Contains("in (0, 1)"));
  CHECK_THAT(described({"data"}), Contains("data.kind: char") && Contains("data.kind: recall"));
  CHECK_THAT(described({"model"}), StartsWith("model.kind: decoder: ") && Contains("d_model"));
  CHECK_THAT(described({"position"}), Contains("max_distance"));
  CHECK_THAT(described({"seed"}),
             Contains("integer (default 1337, in [0, 9223372036854775808))") && !Contains("tag "));
  CHECK_THAT(described({"train.checkpoint"}), Contains("checkpoint.every") && !Contains("warmup"));
  CHECK_THAT(described({"lr"}), Contains("peak learning rate") && !Contains("min_lr"));
  const Json tables = Json::parse(described({"induction", "--json"})).at("tables");
  CHECK(tables.at(0).at("path") == "data");
  CHECK(tables.at(0).at("options").at(0).at("name") == "context");

  const std::string all = headlab({"describe"}).out;
  for (const std::string word : {"seed", "train", "log", "char", "decoder", "mha"})
    CHECK_THAT(all, Contains("\n  " + word + " "));
  const Json words = Json::parse(headlab({"describe", "--json"}).out).at("words");
  for (const Json& word : words) described({word.get<std::string>()});
  const Outcome unknown = headlab({"describe", "trian"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("'trian'; did you mean 'train'?") &&
                              Contains("there are name, ") && Contains(", char, ") &&
                              Contains(", mha, "));
  CHECK(lines_of(unknown.err).size() == 1);
}

TEST_CASE("describe shows the paper and the equations that a kind's file begins with") {
  const std::string text = described({"talking"});
  CHECK_THAT(text, Contains("arXiv 2003.02436") && Contains("\n  z'_g = sum_h z_h pre[h,g]") &&
                       Contains("pre_off_diagonal"));
  const Json moh = Json::parse(described({"moh", "--json"}));
  CHECK(moh.at("papers") == Json{"2410.11842"});
  CHECK_FALSE(moh.at("statistics").empty());
  for (const auto& kind : build::kVariantStems) {
    INFO(kind);
    const Json facts = Json::parse(described({std::string(kind), "--json"}));
    CHECK_THAT(facts.at("opening").get<std::string>(), Contains("arXiv"));
    CHECK_FALSE(facts.at("papers").empty());
  }
  const Json linformer = Json::parse(described({"linformer", "--json"}));
  const auto& without = linformer.at("without");
  CHECK(std::count(without.begin(), without.end(), "prev_token") == 1);
  CHECK(Json::parse(described({"mha", "--json"})).at("without").empty());
}

TEST_CASE("list and describe tell of every kind of heads") {
  const Json kinds = Json::parse(headlab({"list", "--json"}).out);
  const auto lines = lines_of(headlab({"list"}).out);
  CHECK(lines.size() == kinds.size());
  CHECK(kinds.size() == build::kVariantStems.size());
  const std::string table = headlab({"describe", "--table"}).out;
  for (const auto& [kind, summary] : kinds.items()) {
    INFO(kind);
    const auto line = std::find_if(
        lines.begin(), lines.end(),
        [start = kind + " "](const std::string& text) { return text.starts_with(start); });
    REQUIRE(line != lines.end());
    CHECK_THAT(*line, Contains(summary.get<std::string>()));
    CHECK_THAT(table, Contains("| `" + kind + "` | " + summary.get<std::string>() + " | "));

    const Json object = Json::parse(described({kind, "--json"}));
    CHECK(object.at("kind") == kind);
    CHECK(object.at("summary") == summary);
    CHECK_FALSE(object.at("parameters").empty());
    CHECK(object.at("traits").is_object());
    const std::string text = described({kind});
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

TEST_CASE("commands that are printed call the program as the caller does") {
  const auto called = [](const Arguments& arguments) {
    const Outcome outcome = Process({.arguments = arguments,
                                     .environment = {{"HEADLAB_COMMAND", "../h/scripts/headlab"}}})
                                .end();
    return outcome.out + outcome.err;
  };
  const std::string help = called({"--help"});
  CHECK_THAT(help, Contains("Usage: ../h/scripts/headlab [OPTIONS]"));
  for (const std::string& name : command_names()) {
    INFO(name);
    const std::string text = called({name, "--help"});
    CHECK_THAT(text, Contains("Usage: ../h/scripts/headlab " + name));
    const std::string example = text.substr(text.find("\nExample:\n"));
    CHECK_THAT(example, Contains("../h/scripts/headlab " + name));
    for (size_t at = 0; (at = example.find("headlab ", at)) != std::string::npos; ++at)
      CHECK_THAT(example.substr(0, at), EndsWith("../h/scripts/"));
  }
  CHECK_THAT(called({}), Contains("; ../h/scripts/headlab --help lists"));
  CHECK_THAT(called({"rum"}), Contains("; ../h/scripts/headlab --help lists"));
  CHECK_THAT(called({"run", "--restart"}), Contains("see ../h/scripts/headlab run --help"));
}

TEST_CASE("completion scripts parse and complete commands and options") {
  const Scratch scratch;
  const std::string script = (scratch / "headlab.bash").string();
  write_bytes(script, headlab({"completion", "bash"}).out);
  const auto complete = [&](const std::string& words, int at) {
    const Outcome outcome =
        Process({.arguments = {"-c", "cd " + scratch.path().string() + "; source " + script +
                                         "; COMP_WORDS=(" + words + "); COMP_CWORD=" +
                                         std::to_string(at) + "; _headlab; echo ${COMPREPLY[@]}"},
                 .program = "bash"})
            .end();
    CHECK(outcome.err.empty());
    return outcome.out;
  };
  CHECK(complete("headlab ru", 1) == "run runs\n");
  CHECK(complete("headlab run --dr", 2) == "--dry-run\n");
  CHECK(complete("headlab layer --f", 2) == "--forward-only\n");
  CHECK_THAT(complete("headlab ''", 1), Contains("generate") && Contains("version"));
  CHECK(complete("headlab describe mo", 2) == "model moba moh mohsa\n");
  CHECK_THAT(complete("headlab describe \'\'", 2), Contains("train ") && Contains("char "));
  CHECK(complete("headlab convert @ --to g", 4) == "gated\n");
  CHECK(complete("headlab run a.yaml train.ste", 3) == "train.steps=\n");
  CHECK(complete("headlab validate a.yaml model.attention.ki", 3) == "model.attention.kind=\n");
  CHECK(complete("headlab config a.yaml model.att", 3) ==
        "model.attention. model.attention= model.attention_at= model.attention_dropout=\n");
  CHECK(complete("headlab run a.yaml train.schedule = c", 5) == "cosine constant\n");
  CHECK(complete("headlab run a.yaml log.swmr =", 4) == "true false\n");
  CHECK(complete("headlab run a.yaml train.schedule=l", 3) == "train.schedule=linear\n");
  CHECK(complete("headlab run a.yaml data.path = a", 5) == "\n");  // a file, by the shell itself
  fs::create_directories(scratch / "runs/tiny/1a2b-s1");
  fs::create_directories(scratch / "runs/half");
  fs::create_directories(scratch / "runs/not_one");
  for (const char* run : {"runs/tiny/1a2b-s1", "runs/half"})
    write_bytes(scratch / run / "config.yaml", "");
  CHECK(complete("headlab prune ''", 2) == "@ runs/half runs/tiny/1a2b-s1\n");
  CHECK(complete("headlab inspect runs/t", 2) == "runs/tiny/1a2b-s1\n");

  CHECK_THAT(headlab({"completion", "zsh"}).out,
             StartsWith("#compdef headlab\nautoload") && Contains("_headlab"));
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
  // Of a token keys and values in float32 of each layer; or a latent and the keys that turn.
  CHECK(object.at("cache_bytes_per_token") == 4 * (2 * 128) * 4);
  CHECK_THAT(headlab({"validate", config}).out, Contains("cache a token     4 KiB"));
  const auto with = [&](const std::string& setting) {
    return Json::parse(headlab({"validate", config, setting, "--json"}).out);
  };
  CHECK(with("model.attention.kind=mla").at("cache_bytes_per_token") == 4 * (4 * 32 + 16) * 4);
  CHECK_FALSE(with("model.attention.kind=sigmoid").contains("cache_bytes_per_token"));
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
