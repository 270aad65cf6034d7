// What a configuration may hold: tables of it, and its JSON schema.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/config/alternatives.h"
#include "core/config/seed_option.h"
#include "tests/catch.h"
#include "tests/config_testing.h"

namespace headlab::test_config_schema {

using namespace config_testing;
using Json = nlohmann::json;

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
        "attention (kind) [{kind: mha}] <files | gated | mha | moh> the heads\n");
}

TEST_CASE("the schema names every key, its type, bounds and default") {
  Settings s;
  const Json schema = Json::parse(schema_of(s));
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  CHECK(schema["additionalProperties"] == false);
  const Json& keys = schema["properties"];
  CHECK(keys["extends"]["type"] == "string");
  CHECK(keys["steps"] == Json::parse(R"({"type": "integer", "minimum": 1, "maximum": 2147483647,
                                         "default": 2000, "description": "training steps"})"));
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
  const Json& choices = schema["properties"]["attention"]["anyOf"];
  REQUIRE(choices.size() == 5);
  CHECK(choices[0]["enum"] == Json{"files", "gated", "mha", "moh"});
  const Json& moh = schema["$defs"][choices[4]["$ref"].get<std::string>().substr(8)];
  CHECK(moh["properties"]["kind"]["const"] == "moh");
  CHECK(moh["properties"]["shared"]["minimum"] == 0);
  CHECK(moh["additionalProperties"] == false);
  CHECK(choices[4]["required"] == Json{"kind"});
  CHECK_FALSE(choices[3].contains("required"));  // mha is the default
  const Json& gated = schema["$defs"][choices[2]["$ref"].get<std::string>().substr(8)];
  CHECK(gated["properties"]["inner"]["anyOf"].size() == 5);
  CHECK(schema["$defs"].size() == 4);
}

// `size: 3`, `size: {flag: true, ...}` or `size: big`; any kinds under keys of one's own.
struct Sized : Block {
  struct Size : CustomField {
    void read(const ConfigNode&, const std::string&, Problems&) override {}
    ConfigNode write() const override { return write_integer(1); }
    std::string type() const override { return "size"; }
    void forms(Forms& f) const override {
      Inner inner;
      Moh moh;
      f.integer(between(1, 9));
      f.mapping(inner);
      f.word({"big"});
      f.kind("moh", moh, false);
      f.kind("usual", moh, true);
    }
  } size;
  struct Each : CustomField {
    void read(const ConfigNode&, const std::string&, Problems&) override {}
    ConfigNode write() const override { return {}; }
    std::string type() const override { return "each"; }
    void forms(Forms& f) const override {
      f.entries("^[0-9]+$", [](Forms& value) { value.kinds(kinds(), ""); });
    }
  } each;
  IntegerOrBlock<Inner> every{5};
  WordOrNumber scale{{"head", "shared"}};
  CountOrShare warmup = 100;
  SeedOption seed;
  void visit(Fields& f) override {
    f("size", size, "one of many forms");
    f("each", each, "kinds by number");
    f("every", every, "steps");
    f("scale", scale, "of scores");
    f("warmup", warmup, "updates, or a share");
    f("seed", seed, "of draws");
  }
};

TEST_CASE("the schema of a value with a syntax of its own has each of its forms") {
  Sized sized;
  const Json schema = Json::parse(schema_of(sized));
  const Json& keys = schema["properties"];
  const Json& size = keys["size"]["anyOf"];
  REQUIRE(size.size() == 5);
  CHECK(size[0] == Json::parse(R"({"type": "integer", "minimum": 1, "maximum": 9})"));
  CHECK(size[1]["properties"]["every"]["minimum"] == 1);
  CHECK(size[1]["additionalProperties"] == false);
  CHECK(size[2] == Json::parse(R"({"enum": ["big"]})"));
  CHECK(size[3]["properties"]["kind"] == Json::parse(R"({"const": "moh"})"));
  CHECK(size[3]["required"] == Json{"kind"});
  CHECK(size[4]["properties"]["active"]["minimum"] == 1);
  CHECK_FALSE(size[4].contains("required"));

  const Json& each = keys["each"]["patternProperties"]["^[0-9]+$"]["anyOf"];
  REQUIRE(each.size() == 5);
  for (size_t n = 1; n < 5; ++n) CHECK_FALSE(each[n].contains("required"));
  CHECK(keys["each"]["additionalProperties"] == false);

  CHECK(keys["every"]["default"] == 5);
  CHECK(keys["every"]["anyOf"][0] ==
        Json::parse(R"({"type": "integer", "minimum": 0, "maximum": 2147483647})"));
  CHECK(keys["every"]["anyOf"][1]["properties"].contains("on"));
  CHECK(keys["scale"]["anyOf"][0]["enum"] == Json{"head", "shared"});
  CHECK(keys["scale"]["anyOf"][1] == Json::parse(R"({"type": "number"})"));
  CHECK(keys["warmup"]["default"] == 100);
  CHECK(keys["warmup"]["anyOf"][0] ==
        Json::parse(R"({"type": "integer", "minimum": 0, "maximum": 2147483647})"));
  CHECK(keys["warmup"]["anyOf"][1] ==
        Json::parse(R"({"type": "number", "exclusiveMinimum": 0.0, "exclusiveMaximum": 1.0})"));
  CHECK(keys["seed"]["minimum"] == 0);
  CHECK(keys["seed"]["exclusiveMaximum"] == 0x1p64);
}

}  // namespace headlab::test_config_schema
