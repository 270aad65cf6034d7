// Configuration text: what of YAML is accepted, and what is refused, with its place.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/catch.h"
#include "tests/config_testing.h"

namespace headlab::test_config_text {

using namespace config_testing;
using Json = nlohmann::json;

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
  CHECK(parse_message("a: \xE0\x9F\xBF") == "f.yaml:1:4: is not UTF-8 text");
  CHECK(parse_message("a: \xF0\x8F\xBF\xBF") == "f.yaml:1:4: is not UTF-8 text");
  CHECK(parse_message("a: \xF4\x90\x80\x80") == "f.yaml:1:4: is not UTF-8 text");
  CHECK(parse_message("a: \xF4\x8F\xBF\xBF") == "no error");
  CHECK(parse_message("\xC3\xA4: \x04") == "f.yaml:1:4: control character 0x04 is not allowed");
  CHECK(parse_message(std::string("a: \0", 4)) ==
        "f.yaml:1:4: control character 0x00 is not allowed");
  CHECK(parse_message("a: \"x\\0y\"") == "f.yaml:1:4: a: holds a NUL character");
  CHECK(parse_message("\xFE\xFF") == "f.yaml:1:1: is not UTF-8 text");
  for (const char* escape : {"\\N", "\\_"})  // of which yaml-cpp makes single bytes
    CHECK(parse_message(fmt::format("a: \"x{}\"", escape)) ==
          "f.yaml:1:4: a: holds an escape (\\N or \\_) that is not UTF-8 text; write \\u0085 or "
          "\\u00a0");
  CHECK(parse_message("a: \"\\u0085\\u00a0\"") == "no error");
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

}  // namespace headlab::test_config_text
