// Configuration: what is accepted, every message with its place, and the way back to text.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/config.h"
#include "tests/catch.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Inner : Block {
  bool on = false;
  int64_t every = 10;
  FilePath path;
  void visit(Fields& f) override {
    f("on", on, "whether");
    f("every", every, "steps between", at_least(1));
    f("path", path, "a file");
  }
};

struct Mha : Block {
  bool bias = true;
  std::optional<double> scale;
  void visit(Fields& f) override {
    f("bias", bias, "adds biases");
    f("scale", scale, "of the scores; derived from head_dim", above(0));
  }
};

struct Moh : Block {
  int64_t shared = 2, active = 2;
  void visit(Fields& f) override {
    f("shared", shared, "heads always on", at_least(0));
    f("active", active, "heads chosen by token", at_least(1));
  }
  void check(const Complain& complain) const override {
    if (active > 8) complain("active", "must not exceed the routed heads");
    if (shared > 8) complain("", "too many heads");
  }
};

struct Files : Block {
  FilePath path;
  void visit(Fields& f) override { f("path", path, "a file"); }
};

const KindRegistry& kinds();

// A kind that holds a kind of its own family.
struct Gated : Block {
  KindBlock inner{kinds(), "mha"};
  void visit(Fields& f) override { f("inner", inner, "the heads behind the gates"); }
};

struct Kinds : KindRegistry {
  std::vector<std::string> names() const override { return {"files", "gated", "mha", "moh"}; }
  std::shared_ptr<Block> options(const std::string& kind) const override {
    if (kind == "files") return std::make_shared<Files>();
    if (kind == "gated") return std::make_shared<Gated>();
    if (kind == "mha") return std::make_shared<Mha>();
    if (kind == "moh") return std::make_shared<Moh>();
    return nullptr;
  }
};

const KindRegistry& kinds() {
  static const Kinds all;
  return all;
}

// Every type of field.
struct Settings : Block {
  bool flag = false;
  int64_t steps = 2000;
  double lr = 1e-3;
  std::string name = "run";
  std::string schedule = "cosine";
  FilePath data;
  std::optional<bool> causal;
  std::optional<int64_t> window;
  std::optional<double> clip;
  std::vector<int64_t> layers;
  std::vector<double> betas{0.9, 0.95};
  std::vector<std::string> stats{"loss"};
  Inner log;
  KindBlock attention{kinds(), "mha"};

  void visit(Fields& f) override {
    f("flag", flag, "a switch");
    f("steps", steps, "training steps", at_least(1));
    f("lr", lr, "learning rate", above(0));
    f("name", name, "name of the run");
    f("schedule", schedule, "of the rate", one_of({"cosine", "linear", "constant"}));
    f("data", data, "training text");
    f("causal", causal, "masks the future");
    f("window", window, "keys seen", between(1, 100));
    f("clip", clip, "norm of the gradient", above(0));
    f("layers", layers, "which", at_least(0));
    f("betas", betas, "of Adam", from_below(0, 1));
    f("stats", stats, "which", one_of({"loss", "entropy", "all"}));
    f("log", log, "the log");
    f("attention", attention, "the heads");
  }
  void check(const Complain& complain) const override {
    if (steps == 13) complain("steps", "must not be 13");
    if (steps == 14) complain("window", "is due for 14 steps");
    if (steps == 15) complain("log.every", "must divide 15");
  }
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Settings read(const std::string& text) {
  Settings settings;
  read_config(settings, parse_config(text, "f.yaml", "/base"));
  return settings;
}

std::string message(const std::string& text) {
  return error_of([&] { read(text); });
}

std::string parse_message(const std::string& text) {
  return error_of([&] { parse_config(text, "f.yaml"); });
}

// A folder of files for one test.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "headlab_config_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()));
    path_ = fs::canonical(pattern);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// What Folder's files say in messages, with the folder taken out.
std::string without(std::string text, const Folder& folder) {
  const std::string head = (folder / "").string();
  for (size_t at; (at = text.find(head)) != std::string::npos;) text.erase(at, head.size());
  return text;
}

std::string repeat(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

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
  CHECK(read("steps: 9223372036854775807").steps == std::numeric_limits<int64_t>::max());
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

TEST_CASE("a kind is a word or a mapping") {
  CHECK(read("attention: moh").attention.as<Moh>().shared == 2);
  CHECK(read("attention: {bias: false}").attention.kind() == "mha");
  CHECK_FALSE(read("attention: {bias: false}").attention.as<Mha>().bias);
  CHECK(message("attention: moth") ==
        "f.yaml:1:12: attention: must be one of files, gated, mha, moh; did you mean 'moh'?");
  CHECK(message("attention: {shared: 1, kind: Moh}") ==
        "f.yaml:1:30: attention.kind: must be one of files, gated, mha, moh; did you mean 'moh'?");
  CHECK(message("attention: {kind: mha, shared: 1}") ==
        "f.yaml:1:24: attention.shared: unknown key; known are kind, bias, scale");
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

TEST_CASE("what YAML allows and a configuration does not is an error with its place") {
  CHECK(parse_message("a: 1\nb: {c: 1, c: 2}\na: 2") ==
        "f.yaml:2:11: b.c: duplicate key, first on line 2\n"
        "f.yaml:3:1: a: duplicate key, first on line 1");
  CHECK(parse_message("a: 1\n'a': 2") == "f.yaml:2:1: a: duplicate key, first on line 1");
  CHECK(parse_message("a: &x 1") ==
        "f.yaml:1:4: a: anchors (&) are not supported; write the value out");
  CHECK(parse_message("a: &x {b: 1}\nc: [1, *x]") ==
        "f.yaml:1:4: a: anchors (&) are not supported; write the value out\n"
        "f.yaml:2:8: c[1]: aliases (*) are not supported; write the value out");
  CHECK(parse_message("a: *x") == "f.yaml:1:4: a: the referenced anchor is not defined");
  CHECK(parse_message("a: {<<: {b: 1}}") ==
        "f.yaml:1:5: a.<<: merge keys (<<) are not supported; write the keys out");
  CHECK(parse_message("a: !!str 1\nb: !x [1]\nc: !y {d: 1}") ==
        "f.yaml:1:4: a: tags (!) are not supported; write the plain value\n"
        "f.yaml:2:4: b: tags (!) are not supported; write the plain value\n"
        "f.yaml:3:4: c: tags (!) are not supported; write the plain value");
  CHECK(parse_message("a: 1\n---\nb: 2") ==
        "f.yaml:2:1: a second document or value begins; only one is allowed");
  CHECK(parse_message("{a: 1}\n{b: 1}") ==
        "f.yaml:2:1: a second document or value begins; only one is allowed");
  CHECK(parse_message("? [a]\n: 1") == "f.yaml:1:3: ?: a key must be a word");
  CHECK(parse_message("~: 1") == "f.yaml:1:1: ?: a key must be a word");
  CHECK(parse_message("? " + repeat("k", 129) + "\n: 1") ==
        "f.yaml:1:3: ?: a key may have at most 128 bytes");
  CHECK(parse_message("- 1") == "f.yaml:1:1: must be a mapping of keys to values, is a list");
  CHECK(parse_message("word") ==
        "f.yaml:1:1: must be a mapping of keys to values, is a plain value");
  CHECK(parse_message("a: 1\n...\n") == "no error");
  CHECK(parse_message("%YAML 1.2\n---\na: 1\n") == "no error");
}

TEST_CASE("a syntax error is told with its place") {
  CHECK(parse_message("a: 1\nb: [1, 2") == "f.yaml:2:4: b: the bracket is not closed");
  CHECK(parse_message("a: {b: {c: 1}") == "f.yaml:1:4: a: the bracket is not closed");
  CHECK(parse_message("[") == "f.yaml:1:1: the bracket is not closed");
  CHECK(parse_message("a: b: c") == "f.yaml:1:5: illegal map value");
  CHECK(parse_message("a:\n\tb: 1") ==
        "f.yaml:2:3: illegal map value; indent with spaces, not with tabs");
  CHECK(parse_message("a: `x`") == "f.yaml:1:4: a: unknown token");
  CHECK(parse_message("a: \"\\q\"") == "f.yaml:1:7: a: unknown escape character: q");
}

TEST_CASE("a quote must be closed, which yaml-cpp does not require") {
  CHECK(parse_message("a: \"b\n") == "f.yaml:1:4: a: the quote is not closed");
  CHECK(parse_message("a: 'it''s\n") == "f.yaml:1:4: a: the quote is not closed");
  CHECK(parse_message("a: \"b\\\"\n") == "f.yaml:1:4: a: the quote is not closed");
  CHECK(parse_message("a: \"b\\\\\"\n") == "no error");
  CHECK(parse_message("a: 'it''s'\n") == "no error");
}

TEST_CASE("only UTF-8 text without control characters is read") {
  CHECK(parse_message("a: 1\nb: \xFF") == "f.yaml:2:4: is not UTF-8 text");
  CHECK(parse_message("a: \xC0\xAF") == "f.yaml:1:4: is not UTF-8 text");
  CHECK(parse_message("a: \xED\xA0\x80") == "f.yaml:1:4: is not UTF-8 text");
  CHECK(parse_message("a: \xE2\x82") == "f.yaml:1:4: is not UTF-8 text");
  CHECK(parse_message("\xC3\xA4: \x04") == "f.yaml:1:4: control character 0x04 is not allowed");
  CHECK(parse_message(std::string("a: \0", 4)) ==
        "f.yaml:1:4: control character 0x00 is not allowed");
  CHECK(parse_message("a: \"x\\0y\"") == "f.yaml:1:4: a: holds a NUL character");
  CHECK(parse_message("\xFE\xFF") == "f.yaml:1:1: is not UTF-8 text");
}

TEST_CASE("line ends, byte order mark and tabs between tokens do not matter") {
  const ConfigNode plain = parse_config("a: 1\nb: {c: x}\n", "f");
  CHECK(parse_config("a: 1\r\nb: {c: x}\r\n", "f") == plain);
  CHECK(parse_config("\xEF\xBB\xBF"
                     "a: 1\nb: {c: x}",
                     "f") == plain);
  CHECK(parse_config("a:\t1\nb:\t{c:\tx}\n", "f") == plain);
  CHECK(message("flag: true\r\nsteps: 0\r\n") == "f.yaml:2:8: steps: must be at least 1, is 0");
  CHECK(message("\xEF\xBB\xBFsteps: 0") == "f.yaml:1:8: steps: must be at least 1, is 0");
}

TEST_CASE("columns count characters, and unicode keys and values pass through") {
  CHECK(message("{größe: 1, steps: 0}") ==
        "f.yaml:1:19: steps: must be at least 1, is 0\n"
        "f.yaml:1:2: größe: unknown key; known are flag, steps, lr, name, schedule, data, causal, "
        "window, clip, layers, betas, stats, log, attention");
  CHECK(message("{name: 名前, 層: 1}").starts_with("f.yaml:1:12: 層: unknown key"));
  CHECK(read("name: naïve 名前 🙂").name == "naïve 名前 🙂");
}

TEST_CASE("a problem stays on its line") {
  CHECK(
      message("\"st\\neps\\e[31m\": 1").starts_with("f.yaml:1:1: st\\neps\\x1b[31m: unknown key"));
  const std::string all = message("steps: \"a\\nb\"");
  CHECK(all == "f.yaml:1:8: steps: must be an integer, is the text \"a\\nb\"");
  CHECK(message("steps: " + repeat("ä", 40)) ==
        "f.yaml:1:8: steps: must be an integer, is '" + repeat("ä", 30) + "...'");
}

TEST_CASE("nesting is bounded while parsing") {
  const auto nested = [](size_t depth) {
    return parse_message("a: " + repeat("[", depth) + repeat("]", depth));
  };
  CHECK(nested(63) == "no error");
  CHECK(nested(64) == "f.yaml:1:67: a" + repeat("[0]", 63) + ": nested more than 64 deep");
  CHECK(parse_message(repeat("{a: ", 65)).find("nested more than 64 deep") != std::string::npos);
  for (const char* opener : {"[", "{", "{a: ", "- ", "? ", ": ", "[a: ", "[: "}) {
    CHECK(parse_message(repeat(opener, 100'000)) != "no error");
  }
}

TEST_CASE("a text that would explode is refused") {
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 40; ++i) bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", i, i - 1);
  CHECK(parse_message(bomb).starts_with("f.yaml:1:5: a0: anchors (&) are not supported"));
  CHECK(parse_message("a: &a [*a]").find("aliases (*)") != std::string::npos);
  CHECK(parse_message("a: [" + repeat("1,", 100'001) + "]").find("holds more than 100000 values") !=
        std::string::npos);
  CHECK(parse_message(repeat("#", (1 << 20) + 1)) ==
        "f.yaml: is larger than 1 MiB, so not a configuration");
  CHECK(parse_message(repeat("#", 1 << 20)) == "no error");
}

TEST_CASE("no text crashes the reader") {
  const std::string seed =
      "name: \"x\\u00e9\"\ndata: 'it''s'\nlog: {on: true, every: 3}\nattention:\n  kind: moh\n"
      "  shared: 1\nlayers: [1, 2]\nbetas:\n- 0.5\n# end\nclip: |\n  1\n";
  const std::string alphabet = "[]{}:,-?&*!|>'\"%@`#\n\t\r ~<=\\0ax.\xC3\xA9\xFF";
  std::mt19937 random(7);
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = seed.substr(0, below(seed.size()) + 1);
    for (size_t n = below(8); n-- > 0;) {
      text.insert(below(text.size() + 1),
                  repeat(alphabet.substr(below(alphabet.size()), 1), 1 + below(3)));
    }
    try {
      const ConfigNode node = parse_config(text, "f");
      CHECK(parse_config(to_yaml(node), "g") == node);
      Settings settings;
      read_config(settings, node);
    } catch (const ConfigError& error) {
      ++refused;
      CHECK(std::string(error.what()).size() > 2);
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("JSON is read as YAML") {
  const ConfigNode node = parse_config(
      Json{{"a", 1}, {"b", {1.5, true, "x/y\"\\ \n\t"}}, {"c", {{"d", "1"}, {"e", Json::object()}}}}
          .dump(),
      "f");
  CHECK(node.find("a")->text == "1");
  CHECK(node.find("b")->items[2].text == "x/y\"\\ \n\t");
  CHECK(node.find("c")->find("d")->quoted);
  CHECK(node.find("c")->find("e")->kind == ConfigNode::Kind::kMapping);
}

TEST_CASE("extends merges over the parent, whose paths keep their own directory") {
  Folder folder;
  folder.write("base/root.yaml", "steps: 1\nname: root\nlog: {on: true, path: root.txt}\n");
  folder.write("base/mid.yaml", "extends: root.yaml\nsteps: 2\ndata: mid.txt\nlayers: [1, 2]\n");
  const fs::path top =
      folder.write("top/top.yaml", "extends: ../base/mid.yaml\nlog: {every: 5}\nlayers: [7]\n");
  Settings s;
  read_config(s, load_config(top));
  CHECK(s.steps == 2);
  CHECK(s.name == "root");
  CHECK(s.log.on);
  CHECK(s.log.every == 5);
  CHECK(s.layers == std::vector<int64_t>{7});
  CHECK(s.data.resolved == folder / "base/mid.txt");
  CHECK(s.log.path.resolved == folder / "base/root.txt");
}

TEST_CASE("problems of a parent name the parent") {
  Folder folder;
  folder.write("base.yaml", "\nsteps: 0\nlog:\n  on: true\n");
  const fs::path top = folder.write("a/top.yaml", "extends: ../base.yaml\nlog:\n  on: yes\n");
  Settings s;
  const std::string all = error_of([&] { read_config(s, load_config(top)); });
  CHECK(without(all, folder) ==
        "base.yaml:2:8: steps: must be at least 1, is 0\n"
        "a/top.yaml:3:7: log.on: must be true or false, is 'yes'; did you mean 'true'?");
}

TEST_CASE("files that extend each other, or none, are errors") {
  Folder folder;
  const auto load = [&](const std::string& name) {
    return without(error_of([&] { load_config(folder / name); }), folder);
  };
  folder.write("a.yaml", "x: 1\nextends: b.yaml\n");
  folder.write("b.yaml", "extends: a.yaml\n");
  CHECK(load("a.yaml") ==
        "b.yaml:1:10: extends: a.yaml: extends itself: a.yaml -> b.yaml -> a.yaml");
  folder.write("self.yaml", "extends: self.yaml\n");
  CHECK(load("self.yaml") ==
        "self.yaml:1:10: extends: self.yaml: extends itself: self.yaml -> self.yaml");
  folder.write("lost.yaml", "extends: none.yaml\n");
  CHECK(load("lost.yaml") ==
        "lost.yaml:1:10: extends: none.yaml: cannot open: No such file or directory");
  folder.write("list.yaml", "extends: [a.yaml]\n");
  CHECK(load("list.yaml") == "list.yaml:1:10: extends: must be the path of one file");
  CHECK(load("none.yaml") == "none.yaml: cannot open: No such file or directory");
  folder.write("dir/x", "");
  CHECK(load("dir") == "dir: cannot read: Is a directory");
  CHECK(error_of([] { load_config(""); }) == ": cannot open: No such file or directory");
  fs::create_symlink("ring", folder / "ring");
  CHECK(load("ring") == "ring: cannot open: Too many levels of symbolic links");
  CHECK(load(std::string(300, 'x')) == std::string(300, 'x') + ": cannot open: File name too long");
  CHECK(error_of([] { load_config("/dev/zero"); }) ==
        "/dev/zero: is larger than 1 MiB, so not a configuration");

  for (int i = 0; i < 20; ++i) {
    folder.write(fmt::format("c{}.yaml", i), fmt::format("extends: c{}.yaml\n", i + 1));
  }
  folder.write("c20.yaml", "x: 1\n");
  CHECK(load("c5.yaml") == "no error");
  CHECK(load("c4.yaml") ==
        "c19.yaml:1:10: extends: c20.yaml: more than 16 files extend each other");
}

TEST_CASE("overrides go through the same reader and start paths at the caller") {
  Folder folder;
  const fs::path file =
      folder.write("c.yaml", "steps: 5\nlog: {every: 4}\nattention: {kind: moh, shared: 1}\n");
  const auto with = [&](const std::vector<std::string>& overrides) {
    Settings s;
    read_config(s, load_config(file, overrides));
    return s;
  };
  const Settings s = with({"steps=7", "log.on=true", "data=x/y.txt", "name=a=b", "layers=[1, 2]",
                           "attention.shared=0", "log.path=/abs/z"});
  CHECK(s.steps == 7);
  CHECK(s.log.on);
  CHECK(s.log.every == 4);
  CHECK(s.data.resolved == fs::current_path() / "x/y.txt");
  CHECK(s.log.path.resolved == fs::path("/abs/z"));
  CHECK(s.name == "a=b");
  CHECK(s.layers == std::vector<int64_t>{1, 2});
  CHECK(s.attention.as<Moh>().shared == 0);
  CHECK(with({"steps=7", "steps=8"}).steps == 8);
  CHECK(with({"log={on: true}"}).log.every == 4);

  const auto told = [&](const std::vector<std::string>& overrides) {
    return without(error_of([&] { with(overrides); }), folder);
  };
  CHECK(told({"steps=0"}) == "override: steps: must be at least 1, is 0");
  CHECK(told({"step=1"}) == "override: step: unknown key; did you mean 'steps'?");
  CHECK(told({"log.evry=1"}) == "override: log.evry: unknown key; did you mean 'every'?");
  CHECK(told({"log={evry: 1}"}) == "override: log.evry: unknown key; did you mean 'every'?");
  CHECK(told({"steps"}) == "override: steps: must be written a.b.c=value");
  CHECK(told({"=3"}) == "override: has an empty key; write a.b.c=value");
  CHECK(told({"log..on=3"}) == "override: log..on: has an empty key; write a.b.c=value");
  CHECK(told({"layers=[1"}) == "override: layers: the bracket is not closed");
  CHECK(told({"layers=[1, &x 2]"}) ==
        "override: layers[1]: anchors (&) are not supported; write the value out");
  CHECK(told({"log={on: true, on: true}"}) == "override: log.on: duplicate key");
  CHECK(told({"steps="}) == "override: steps: must be an integer, is empty");
  CHECK(told({"steps.x=1"}) ==
        "override: steps.x: 'steps' is a plain value, not a mapping; write steps={x: ...}");
  CHECK(told({"layers=[1]", "layers.x=1"}) ==
        "override: layers.x: 'layers' is a list, not a mapping; write layers={x: ...}");
  CHECK(told({"steps=13"}) == "override: steps: must not be 13");
  // A mapping that an override passes through keeps its place.
  CHECK(told({"attention.kind=moh", "attention.shared=9"}) ==
        "c.yaml:3:12: attention: too many heads");
}

TEST_CASE("a kind that changes takes none of the old options with it") {
  Folder folder;
  const fs::path file = folder.write("c.yaml", "attention: {kind: moh, shared: 1}\n");
  const auto with = [&](const std::vector<std::string>& overrides) {
    Settings s;
    read_config(s, load_config(file, overrides));
    return s.attention;
  };
  CHECK(with({"attention.kind=mha"}).kind() == "mha");
  CHECK(with({"attention={kind: mha, bias: false}"}).kind() == "mha");
  CHECK(with({"attention=mha"}).kind() == "mha");
  CHECK(with({"attention.kind=moh"}).as<Moh>().shared == 1);
  CHECK(with({"attention={kind: moh, active: 3}"}).as<Moh>().shared == 1);
  // Whichever is named first.
  CHECK_FALSE(with({"attention.bias=false", "attention.kind=mha"}).as<Mha>().bias);
  CHECK_FALSE(with({"attention.kind=mha", "attention.bias=false"}).as<Mha>().bias);

  folder.write("child.yaml", "extends: c.yaml\nattention: {kind: mha}\n");
  Settings s;
  read_config(s, load_config(folder / "child.yaml"));
  CHECK(s.attention.kind() == "mha");
}

TEST_CASE("a written block reads back to the same values") {
  Settings s = read(
      "lr: 1e-7\nname: 'true'\ndata: a b/c.txt\nwindow: 3\nlayers: [1]\nclip: 2\nattention: {kind: "
      "gated, inner: {kind: files, path: q}}");
  CHECK(to_yaml(write_block(s)) ==
        "flag: false\n"
        "steps: 2000\n"
        "lr: 1.0e-07\n"
        "name: \"true\"\n"
        "schedule: cosine\n"
        "data: /base/a b/c.txt\n"
        "window: 3\n"
        "clip: 2.0\n"
        "layers: [1]\n"
        "betas: [0.9, 0.95]\n"
        "stats: [loss]\n"
        "log: {\"on\": false, every: 10}\n"
        "attention:\n"
        "  kind: gated\n"
        "  inner: {kind: files, path: /base/q}\n");
  const ConfigNode written = write_block(s, Paths::kWritten);
  CHECK(written.find("data")->text == "a b/c.txt");
  CHECK(written.find("attention")->find("inner")->find("path")->text == "q");
  Settings again = read(to_yaml(written));
  CHECK(write_block(again) == write_block(s));
}

TEST_CASE("the minimal form names what differs from the defaults") {
  const auto minimal = [](const std::string& text) {
    Settings s = read(text), defaults;
    return to_flow(write_minimal(s, defaults));
  };
  CHECK(minimal("") == "{}");
  CHECK(minimal("steps: 2000\nlr: 0.001\nbetas: [0.9, 0.95]\nlog: {every: 10}\nattention: mha") ==
        "{}");
  CHECK(minimal("steps: 3\nlog: {on: true, every: 10}\ndata: x.txt") ==
        "{steps: 3, data: x.txt, log: {\"on\": true}}");
  CHECK(minimal("attention: {kind: moh, shared: 2, active: 3}") ==
        "{attention: {kind: moh, active: 3}}");
  CHECK(minimal("attention: {bias: false}") == "{attention: {kind: mha, bias: false}}");
  CHECK(minimal("attention: {kind: gated, inner: {kind: moh}}") ==
        "{attention: {kind: gated, inner: {kind: moh}}}");
  Settings s = read("data: x.txt"), defaults;
  CHECK(to_flow(write_minimal(s, defaults, Paths::kAbsolute)) == "{data: /base/x.txt}");
}

TEST_CASE("random settings survive the way to text and back, whole and minimal") {
  std::mt19937_64 random(11);
  auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const std::vector<std::string> bits = {"true",
                                         "yes",
                                         "1",
                                         "0x1",
                                         "null",
                                         "~",
                                         " ",
                                         "a",
                                         "_",
                                         ":",
                                         ": ",
                                         " #",
                                         "#",
                                         "-",
                                         "- ",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         ",",
                                         "'",
                                         "\"",
                                         "\\",
                                         "\n",
                                         "\t",
                                         "\r",
                                         "é",
                                         "名",
                                         "🙂",
                                         "&",
                                         "*",
                                         "!",
                                         "|",
                                         ">",
                                         "%",
                                         "@",
                                         "`",
                                         "?",
                                         "=",
                                         ".",
                                         "e",
                                         "+",
                                         "...",
                                         "---",
                                         "\x01",
                                         "\x7f",
                                         "\xC2\x85",
                                         "\xE2\x80\xA8",
                                         "\xEF\xBB\xBF",
                                         "<<",
                                         "2-5",
                                         "/"};
  auto text = [&] {
    std::string result;
    for (int64_t n = below(6); n-- > 0;) result += bits[below(bits.size())];
    return result;
  };
  auto number = [&] {
    const uint64_t raw = random() & 0x7fffffffffffffff;
    double value;
    std::memcpy(&value, &raw, sizeof value);
    return std::isfinite(value) && value > 0 ? value : 1.0;
  };
  for (int round = 0; round < 1000; ++round) {
    Settings s;
    s.flag = below(2), s.steps = 1 + below(std::numeric_limits<int64_t>::max() - 1);
    s.lr = number(), s.name = text();
    if (below(2)) s.causal = below(2);
    if (below(2)) s.window = 1 + below(100);
    if (below(2)) s.clip = number();
    for (int64_t n = below(4); n-- > 0;) s.layers.push_back(below(1000));
    s.betas.assign(below(3), 1.0 / static_cast<double>(2 + below(1000)));
    if (const std::string path = text(); !path.empty()) s.data = {path, "/r/" + path};
    s.log.every = 1 + below(5);
    INFO(to_yaml(write_block(s)));
    const ConfigNode whole = write_block(s, Paths::kWritten);
    REQUIRE(parse_config(to_yaml(whole), "f") == whole);
    REQUIRE(parse_config(to_flow(whole), "f") == whole);
    Settings again = read(to_yaml(whole)), defaults;
    REQUIRE(again.lr == s.lr);
    REQUIRE(again.name == s.name);
    REQUIRE(again.data.written == s.data.written);
    REQUIRE(write_block(again, Paths::kWritten) == whole);
    Settings small = read(to_yaml(write_minimal(s, defaults)));
    REQUIRE(write_block(small, Paths::kWritten) == whole);
  }
}

TEST_CASE("random nodes survive the way to text and back") {
  std::mt19937 random(3);
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  const std::vector<std::string> words = {
      "",      "a",    "1", "~", "x: y", "a, b", "- c", "long word that fills the line",
      "名 前", "kind", "-", "?", "0.5"};
  std::function<ConfigNode(int)> node = [&](int depth) {
    ConfigNode result;
    const size_t shape = below(depth > 0 ? 5 : 2);
    if (shape == 0) {
      result.kind = ConfigNode::Kind::kNull;
    } else if (shape < 3) {
      return below(2) ? write_text(words[below(words.size())]) : write_number(double(below(9)) / 8);
    } else if (shape == 3) {
      result.kind = ConfigNode::Kind::kSequence;
      for (size_t n = below(4); n-- > 0;) result.items.push_back(node(depth - 1));
    } else {
      for (size_t n = below(4); n-- > 0;) result.set(words[below(words.size())], node(depth - 1));
    }
    return result;
  };
  for (int round = 0; round < 2000; ++round) {
    ConfigNode top;
    for (size_t n = below(5); n-- > 0;) top.set(words[below(words.size())], node(5));
    INFO(to_yaml(top));
    REQUIRE(parse_config(to_yaml(top), "f") == top);
    REQUIRE(parse_config(to_flow(top), "f") == top);
  }
}

TEST_CASE("YAML is written to be read") {
  const ConfigNode node = parse_config(
      "model: {kind: decoder, layers: 4, attention: {kind: mha, bias: true}}\n"
      "empty: {}\nnone: []\nnested: [[1, 2], [3]]\nblocks: [{a: 1, b: {c: 2}}, {d: 1}]\n"
      "wide: {alpha: one two three four, beta: five six seven eight, gamma: nine ten eleven twelve "
      "a}\n",
      "f");
  CHECK(to_yaml(node) ==
        "model:\n"
        "  kind: decoder\n"
        "  layers: 4\n"
        "  attention: {kind: mha, bias: true}\n"
        "empty: {}\n"
        "none: []\n"
        "nested:\n"
        "  - [1, 2]\n"
        "  - [3]\n"
        "blocks:\n"
        "  -\n"
        "    a: 1\n"
        "    b: {c: 2}\n"
        "  - {d: 1}\n"
        "wide:\n"
        "  alpha: one two three four\n"
        "  beta: five six seven eight\n"
        "  gamma: nine ten eleven twelve a\n");
  CHECK(to_yaml(parse_config("", "f")) == "{}\n");
  CHECK(to_yaml(ConfigNode::scalar("x")) == "x\n");
}

TEST_CASE("text is quoted where it would read as something else, and only there") {
  for (const char* plain : {"abc", "a b", "cosine", "a/b.txt", "cuda:0", "x=1", "naïve", "名前",
                            "a-b", "1k b", "f(x)"}) {
    CHECK(to_flow(write_text(plain)) == plain);
  }
  for (const char* quoted :
       {"",     "true", "False", "yes",  "null",       "~",  "1",  "-1",   "1.5",  "1e3",
        ".inf", "0x1",  "2-5",   "1:30", "2024-01-01", " a", "a ", "a: b", "a #b", "a,b",
        "[a",   "- a",  "a:",    "#a",   "&a",         "*a", "!a", "|",    ">",    "%a",
        "@a",   "`a",   "?",     "---",  "...",        "<<", "'"}) {
    CHECK(to_flow(write_text(quoted)) == '"' + std::string(quoted) + '"');
  }
  CHECK(to_flow(write_text("a\"\\\n\t\x01")) == R"("a\"\\\n\t\u0001")");
  CHECK(to_flow(write_integer(-3)) == "-3");
  CHECK(to_flow(write_bool(true)) == "true");
}

TEST_CASE("equality is of meaning") {
  const auto same = [](const char* a, const char* b) {
    return parse_config(a, "f") == parse_config(b, "g");
  };
  CHECK(same("a: {b: x}", "a:\n  b: 'x'\n"));
  CHECK_FALSE(same("a: 1", "a: '1'"));
  CHECK_FALSE(same("a: ''", "a:"));
  CHECK_FALSE(same("a: 1\nb: 2", "b: 2\na: 1"));
  CHECK_FALSE(same("a: []", "a: {}"));
}

TEST_CASE("floats are written as short as they read back, and visibly floats") {
  CHECK(shortest(1e-3) == "0.001");
  CHECK(shortest(0.1) == "0.1");
  CHECK(shortest(2) == "2");
  CHECK(shortest(1.0 / 3) == "0.3333333333333333");
  CHECK(to_flow(write_number(2)) == "2.0");
  CHECK(to_flow(write_number(1e-3)) == "0.001");
  CHECK(to_flow(write_number(1e-5)) == "1.0e-05");
  CHECK(to_flow(write_number(-1e22)) == "-1.0e+22");
  CHECK(to_flow(write_number(1.5e300)) == "1.5e+300");
  CHECK(to_flow(write_number(-0.0)) == "-0.0");
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

TEST_CASE("a block describes its fields") {
  Settings s;
  std::string table;
  for (const FieldInfo& f : describe_block(s)) {
    table +=
        fmt::format("{} ({}) [{}] <{}> {}\n", f.name, f.type, f.default_text, f.limits, f.help);
  }
  CHECK(table ==
        "flag (bool) [false] <> a switch\n"
        "steps (integer) [2000] <>= 1> training steps\n"
        "lr (number) [0.001] <> 0> learning rate\n"
        "name (text) [run] <> name of the run\n"
        "schedule (text) [cosine] <cosine | linear | constant> of the rate\n"
        "data (path) [] <> training text\n"
        "causal (bool) [] <> masks the future\n"
        "window (integer) [] <in [1, 100]> keys seen\n"
        "clip (number) [] <> 0> norm of the gradient\n"
        "layers (list of integers) [[]] <>= 0> which\n"
        "betas (list of numbers) [[0.9, 0.95]] <in [0, 1)> of Adam\n"
        "stats (list of texts) [[loss]] <loss | entropy | all> which\n"
        "log.on (bool) [false] <> whether\n"
        "log.every (integer) [10] <>= 1> steps between\n"
        "log.path (path) [] <> a file\n"
        "attention (kind) [{kind: mha}] <> the heads\n");
}

TEST_CASE("the schema names every key, its type, bounds and default") {
  Settings s;
  const Json schema = Json::parse(schema_of(s));
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  CHECK(schema["additionalProperties"] == false);
  const Json& keys = schema["properties"];
  CHECK(keys["extends"]["type"] == "string");
  CHECK(keys["steps"] == Json::parse(R"({"type": "integer", "minimum": 1, "default": 2000,
                                         "description": "training steps"})"));
  CHECK(keys["lr"] == Json::parse(R"({"type": "number", "exclusiveMinimum": 0, "default": 0.001,
                                      "description": "learning rate"})"));
  CHECK(keys["schedule"]["enum"] == Json{"cosine", "linear", "constant"});
  CHECK_FALSE(keys["window"].contains("default"));
  CHECK(keys["betas"]["anyOf"][0] ==
        Json::parse(R"({"type": "number", "minimum": 0, "exclusiveMaximum": 1})"));
  CHECK(keys["betas"]["anyOf"][1]["items"] == keys["betas"]["anyOf"][0]);
  CHECK(keys["log"]["properties"]["every"]["default"] == 10);
  CHECK(keys["log"]["additionalProperties"] == false);
}

TEST_CASE("the schema of a kind is one of its family, which may hold the family again") {
  Settings s;
  const Json schema = Json::parse(schema_of(s));
  const Json& choices = schema["properties"]["attention"]["oneOf"];
  REQUIRE(choices.size() == 5);
  CHECK(choices[0]["enum"] == Json{"files", "gated", "mha", "moh"});
  const Json& moh = schema["$defs"][choices[4]["$ref"].get<std::string>().substr(8)];
  CHECK(moh["properties"]["kind"]["const"] == "moh");
  CHECK(moh["properties"]["shared"]["minimum"] == 0);
  CHECK(moh["additionalProperties"] == false);
  CHECK(choices[4]["required"] == Json{"kind"});
  CHECK_FALSE(choices[3].contains("required"));  // mha is the default
  const Json& gated = schema["$defs"][choices[2]["$ref"].get<std::string>().substr(8)];
  CHECK(gated["properties"]["inner"]["oneOf"].size() == 5);
  CHECK(schema["$defs"].size() == 4);

  // By itself it brings its definitions along, every time.
  const Json alone = Json::parse(s.attention.schema());
  CHECK(alone["$defs"].size() == 4);
  CHECK(Json::parse(s.attention.schema()) == alone);
}

}  // namespace headlab
