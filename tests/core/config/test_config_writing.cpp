// Configuration written: the way back to text, tables, JSON schema.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/catch.h"
#include "tests/config_testing.h"

namespace headlab::test_config_writing {

using namespace config_testing;
using Json = nlohmann::json;

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
    s.flag = below(2), s.steps = 1 + below(2147483647);
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

}  // namespace headlab::test_config_writing
