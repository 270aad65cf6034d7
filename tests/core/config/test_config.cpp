// Configuration: what each field accepts, and every message with its place.
#include <fmt/format.h>

#include <algorithm>

#include "tests/catch.h"
#include "tests/config_testing.h"

namespace headlab::test_config {

using namespace config_testing;
namespace fs = std::filesystem;

TEST_CASE("every type of field is read") {
  const Settings s = read(R"(
flag: true
steps: 12
lr: 1e-4
name: a name
schedule: linear
data: sub/../text.txt
causal: false
window: 7
clip: 1
layers: [0, 3]
betas: 0.5
stats: [entropy, "all"]
log: {on: true, every: 3}
attention: {kind: moh, shared: 1}
)");
  CHECK(s.flag);
  CHECK(s.steps == 12);
  CHECK(s.lr == 1e-4);
  CHECK(s.name == "a name");
  CHECK(s.schedule == "linear");
  CHECK(s.data.written == "sub/../text.txt");
  CHECK(s.data.resolved == fs::path("/base/text.txt"));
  CHECK(s.causal == false);
  CHECK(s.window == 7);
  CHECK(s.clip == 1.0);
  CHECK(s.layers == std::vector<int64_t>{0, 3});
  CHECK(s.betas == std::vector<double>{0.5});
  CHECK(s.stats == std::vector<std::string>{"entropy", "all"});
  CHECK(s.log.on);
  CHECK(s.log.every == 3);
  CHECK(s.attention.kind() == "moh");
  CHECK(s.attention.as<Moh>().shared == 1);
  CHECK(s.attention.as<Moh>().active == 2);
}

TEST_CASE("a missing key keeps its default and an empty file keeps them all") {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "{}", "\xEF\xBB\xBF", "\r\n"}) {
    INFO(text);
    const Settings s = read(text);
    CHECK(s.steps == 2000);
    CHECK(s.betas == std::vector<double>{0.9, 0.95});
    CHECK_FALSE(s.window);
    CHECK(s.attention.kind() == "mha");
  }
  CHECK(read("log: {on: true}").log.every == 10);
}

TEST_CASE("only true and false are bools") {
  for (const char* yes : {"yes", "on", "True", "TRUE", "y", "1"}) {
    CHECK(
        message(fmt::format("flag: {}", yes)) ==
        fmt::format("f.yaml:1:7: flag: must be true or false, is '{}'; did you mean 'true'?", yes));
  }
  for (const char* no : {"no", "off", "False", "n", "0"}) {
    CHECK(message(fmt::format("causal: {}", no)) ==
          fmt::format("f.yaml:1:9: causal: must be true or false, is '{}'; did you mean 'false'?",
                      no));
  }
  CHECK(message("flag: 3") == "f.yaml:1:7: flag: must be true or false, is '3'");
  CHECK(message("flag: \"true\"") ==
        "f.yaml:1:7: flag: must be true or false, is the text \"true\"; did you mean 'true'?");
  CHECK(message("flag: [true]") == "f.yaml:1:7: flag: must be true or false, is a list");
}

TEST_CASE("an integer is plain decimal") {
  CHECK(read("steps: 2147483647").steps == 2147483647);
  CHECK(message("steps: 2147483648") ==
        "f.yaml:1:8: steps: must be in [1, 2147483647], is 2147483648");
  for (const char* text :
       {"1k", "1_000", "0x10", "1.0", "1e3", "+5", "0o7", "ten", "1 2", ".5", "-"}) {
    if (std::string(text) == "-") continue;  // a list
    CHECK(message(fmt::format("steps: {}", text)) ==
          fmt::format("f.yaml:1:8: steps: must be an integer, is '{}'", text));
  }
  for (const char* text : {"010", "-010", "00", "007"}) {
    CHECK(
        message(fmt::format("steps: {}", text)) ==
        fmt::format("f.yaml:1:8: steps: must be an integer without leading zeros, is '{}'", text));
  }
  CHECK(message("steps: 9223372036854775808") ==
        "f.yaml:1:8: steps: must be an integer of 64 bits, is '9223372036854775808'");
  CHECK(message("steps: '5'") == "f.yaml:1:8: steps: must be an integer, is the text \"5\"");
  CHECK(message("window: {a: 1}") == "f.yaml:1:9: window: must be an integer, is a mapping");
}

TEST_CASE("a number is finite decimal, and may be written as an integer") {
  CHECK(read("lr: 1").lr == 1.0);
  CHECK(read("lr: .5").lr == 0.5);
  CHECK(read("lr: 5.").lr == 5.0);
  CHECK(read("lr: 1E-3").lr == 1e-3);
  CHECK(read("lr: 0.1").lr == 0.1);
  for (const char* text : {".inf", "-.INF", ".nan", "inf", "nan", "-infinity"}) {
    CHECK(message(fmt::format("lr: {}", text)) ==
          fmt::format("f.yaml:1:5: lr: must be a finite number, is '{}'", text));
  }
  for (const char* text : {"1k", "1_0", "0x1p3", "1,5", "e3", "1e", "true"}) {
    CHECK(message(fmt::format("lr: {}", text)) ==
          fmt::format("f.yaml:1:5: lr: must be a number, is '{}'", text));
  }
  CHECK(message("lr: 01.5") == "f.yaml:1:5: lr: must be a number without leading zeros, is '01.5'");
  CHECK(message("lr: 1e999") ==
        "f.yaml:1:5: lr: must be a number in the range of a double, is '1e999'");
  CHECK(message("lr: \"0.1\"") == "f.yaml:1:5: lr: must be a number, is the text \"0.1\"");
}

TEST_CASE("nothing is no value") {
  CHECK(message("flag:") == "f.yaml:1:1: flag: must be true or false, is empty");
  CHECK(message("steps: ~") == "f.yaml:1:8: steps: must be an integer, is empty");
  CHECK(message("lr: null") == "f.yaml:1:5: lr: must be a number, is empty");
  CHECK(message("name: Null") == "f.yaml:1:7: name: must be a text, is empty");
  CHECK(message("window: null") == "f.yaml:1:9: window: must be an integer, is empty");
  CHECK(message("data: ''") == "f.yaml:1:7: data: must be a path, is the text \"\"");
  CHECK(message("layers: ~") == "f.yaml:1:9: layers: must be a list of integers, is empty");
  CHECK(message("layers: [1, ~]") == "f.yaml:1:13: layers[1]: must be an integer, is empty");
  CHECK(message("log: ~") == "f.yaml:1:6: log: must be a mapping, is empty");
  CHECK(message("attention: ~") ==
        "f.yaml:1:12: attention: must be a kind, or a mapping with 'kind', is empty");
  CHECK(read("name: ''").name.empty());
  CHECK(read("name: 'null'").name == "null");
}

TEST_CASE("values keep their limits") {
  CHECK(message("steps: 0") == "f.yaml:1:8: steps: must be at least 1, is 0");
  CHECK(message("lr: 0.0") == "f.yaml:1:5: lr: must be above 0, is 0.0");
  CHECK(message("window: 101") == "f.yaml:1:9: window: must be in [1, 100], is 101");
  CHECK(message("betas: [0.5, 1]") == "f.yaml:1:14: betas[1]: must be in [0, 1), is 1");
  CHECK(read("window: 100").window == 100);
  CHECK(read("betas: 0").betas == std::vector<double>{0});
  CHECK(message("schedule: cosin") ==
        "f.yaml:1:11: schedule: must be one of cosine, linear, constant; did you mean 'cosine'?");
  CHECK(message("schedule: quadratic") ==
        "f.yaml:1:11: schedule: must be one of cosine, linear, constant");
  CHECK(message("stats: [los]") ==
        "f.yaml:1:9: stats[0]: must be one of loss, entropy, all; did you mean 'loss'?");
  Problems problems;
  int64_t value = 0;
  const Limits below{{}, 3, false, true, {}}, most{{}, 3, false, false, {}};
  CHECK_FALSE(read_value(value, ConfigNode::scalar("3"), "n", problems, below));
  CHECK_FALSE(read_value(value, ConfigNode::scalar("4"), "n", problems, most));
  CHECK(error_of([&] { problems.raise(); }) ==
        "n: must be below 3, is 3\nn: must be at most 3, is 4");
}

TEST_CASE("all problems of a file are told at once, unknown keys with the nearest name") {
  CHECK(message(
            "step: 3\nlr: x\nlog:\n  evry: 2\n  colour: red\nattention: {kind: moh, share: 1}\n") ==
        "f.yaml:2:5: lr: must be a number, is 'x'\n"
        "f.yaml:4:3: log.evry: unknown key; did you mean 'every'?\n"
        "f.yaml:5:3: log.colour: unknown key; known are on, every, path\n"
        "f.yaml:6:24: attention.share: unknown key; did you mean 'shared'?\n"
        "f.yaml:1:1: step: unknown key; did you mean 'steps'?");
}

TEST_CASE("no more than a hundred problems are printed") {
  std::string text;
  for (int i = 0; i < 250; ++i) text += fmt::format("unheard_of_{}: 1\n", i);
  const std::string all = message(text);
  CHECK(std::count(all.begin(), all.end(), '\n') == 100);
  CHECK(all.ends_with("\nand 150 more"));
}

TEST_CASE("check() complains at the field, or at the block when the field is not written") {
  CHECK(message("flag: true\nsteps: 13") == "f.yaml:2:8: steps: must not be 13");
  CHECK(message("  steps: 14") == "f.yaml:1:3: window: is due for 14 steps");
  CHECK(message("steps: 15\nlog:\n  every: 4") == "f.yaml:3:10: log.every: must divide 15");
  CHECK(message("steps: 15\nlog:\n  on: true") == "f.yaml:3:3: log.every: must divide 15");
  CHECK(message("attention: {kind: moh, active: 9}") ==
        "f.yaml:1:32: attention.active: must not exceed the routed heads");
  CHECK(message("attention: {kind: moh, shared: 9}") == "f.yaml:1:12: attention: too many heads");
  // Not while the block itself is wrong.
  CHECK(message("steps: 13\nlr: x") == "f.yaml:2:5: lr: must be a number, is 'x'");
}

TEST_CASE("an unknown key is looked for in every section and every kind") {
  const auto meant = [](const std::string& text) {
    const std::string all = message(text);
    const size_t at = all.find("unknown key; ");
    INFO(all);
    REQUIRE(at != all.npos);
    return all.substr(at + 13);
  };
  CHECK(meant("every: 5") == "did you mean 'log.every'?");
  CHECK(meant("evrey: 5") == "did you mean 'log.every'?");
  CHECK(meant("kind: mha") == "did you mean 'attention.kind'?");
  CHECK(meant("active: 2") == "did you mean 'attention.active' of kind moh?");
  CHECK(meant("log: {steps: 3}") == "did you mean 'steps'?");
  CHECK(meant("log: {evry: 3}") == "did you mean 'every'?");
  CHECK(meant("log: {bias: true}") == "did you mean 'attention.bias' of kind mha?");
  CHECK(meant("attention: {kind: moh, path: x}") ==
        "kind files has it; known are kind, shared, active");
  CHECK_THAT(meant("nothing_like_it: 1"),
             Catch::Matchers::StartsWith("known are flag, steps, lr, "));
  CHECK(meant("log: {stepp: 3}") == "did you mean 'steps'?");
}

TEST_CASE("a kind is a word or a mapping") {
  CHECK(read("attention: moh").attention.as<Moh>().shared == 2);
  CHECK(read("attention: {bias: false}").attention.kind() == "mha");
  CHECK_FALSE(read("attention: {bias: false}").attention.as<Mha>().bias);
  CHECK(message("attention: moth") ==
        "f.yaml:1:12: attention: must be one of files, gated, mha, moh; did you mean 'moh'?");
  CHECK(message("attention: {shared: 1, kind: Moh}") ==
        "f.yaml:1:30: attention.kind: must be one of files, gated, mha, moh; did you mean 'moh'?");
  CHECK(message("attention: {kind: mha, shared: 1}") ==
        "f.yaml:1:24: attention.shared: unknown key; kind moh has it; known are kind, bias, scale");
  CHECK(message("attention: [mha]") ==
        "f.yaml:1:12: attention: must be a kind, or a mapping with 'kind', is a list");
  CHECK(message("attention: {kind: ~}") == "f.yaml:1:19: attention.kind: must be a text, is empty");
  CHECK_THROWS_AS(KindBlock(kinds(), "none"), std::invalid_argument);
}

TEST_CASE("a kind knows its path, its place and the node it was read from") {
  const Settings s = read("attention:\n  kind: gated\n  inner: {kind: moh, shared: 1}\n");
  CHECK(s.attention.path() == "attention");
  CHECK(s.attention.place().line == 2);
  CHECK(s.attention.place("inner").line == 3);
  CHECK(s.attention.node().find("kind")->text == "gated");
  const KindBlock& inner = s.attention.as<Gated>().inner;
  CHECK(inner.path() == "attention.inner");
  CHECK(inner.place("shared").column == 30);
  CHECK(inner.place("active").column == 10);

  const Settings unwritten = read("flag: true");
  CHECK(unwritten.attention.path() == "attention");
  CHECK(unwritten.attention.place("bias").line == 1);
}

TEST_CASE("the nearest name is near") {
  const std::vector<std::string> names = {"steps", "warmup", "lr", "attention", "d_model", "k"};
  CHECK(did_you_mean("step", names) == "; did you mean 'steps'?");
  CHECK(did_you_mean("stpes", names) == "; did you mean 'steps'?");
  CHECK(did_you_mean("STEPS", names) == "; did you mean 'steps'?");
  CHECK(did_you_mean("warm", names) == "; did you mean 'warmup'?");
  CHECK(did_you_mean("atention", names) == "; did you mean 'attention'?");
  CHECK(did_you_mean("d-model", names) == "; did you mean 'd_model'?");
  CHECK(did_you_mean("rl", names) == "; did you mean 'lr'?");
  CHECK(did_you_mean("x", names).empty());
  CHECK(did_you_mean("optimizer", names).empty());
  CHECK(did_you_mean("", names).empty());
  CHECK(did_you_mean("steps", {}).empty());
  CHECK(did_you_mean(repeat("steps", 100'000), names).empty());
}

}  // namespace headlab::test_config
