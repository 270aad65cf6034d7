// What a configuration may hold: tables of it, and its JSON schema.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/config/alternatives.h"
#include "core/config/seed_option.h"
#include "experiments/files/count_or_share.h"
#include "experiments/files/field_table.h"
#include "experiments/files/schema_values.h"
#include "tests/catch.h"
#include "tests/config_testing.h"
#include "variants/mohsa/integer_or_block.h"

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

namespace {

// The schema of a value that has this type, where several are allowed.
const Json& form(const Json& schema, const std::string& type) {
  static const Json none;
  if (!schema.contains("allOf")) return none;
  for (const Json& one : schema["allOf"])
    if (one["if"].value("type", "") == type) return one["then"];
  return none;
}

}  // namespace

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
  CHECK(keys["betas"]["type"] == Json{"number", "array"});
  CHECK(form(keys["betas"], "number") ==
        Json::parse(R"({"type": "number", "minimum": 0, "exclusiveMaximum": 1})"));
  CHECK(form(keys["betas"], "array")["items"] == form(keys["betas"], "number"));
  CHECK(keys["log"]["properties"]["every"]["default"] == 10);
  CHECK(keys["log"]["additionalProperties"] == false);
}

TEST_CASE("the schema of a kind is one of its family, which may hold the family again") {
  Settings s;
  const Json schema = Json::parse(schema_of(s));
  const auto target = [&](const Json& reference) {
    return schema["$defs"][reference.at("$ref").get<std::string>().substr(8)];
  };
  const Json whole = schema["else"]["properties"]["attention"];
  CHECK(schema["if"]["required"] == Json{"extends"});
  CHECK(form(whole, "string")["enum"] == Json{"files", "gated", "mha", "moh"});
  const Json family = target(form(whole, "object"));
  CHECK(family["properties"]["kind"]["enum"] == form(whole, "string")["enum"]);
  const Json& kinds = family["allOf"];
  REQUIRE(kinds.size() == 5);
  CHECK(kinds[3]["if"] ==
        Json::parse(R"({"properties": {"kind": {"const": "moh"}}, "required": ["kind"]})"));
  const Json moh = target(kinds[3]["then"]);
  CHECK(moh["properties"]["kind"]["const"] == "moh");
  CHECK(moh["properties"]["shared"]["minimum"] == 0);
  CHECK(moh["additionalProperties"] == false);
  // Without a kind it is mha, the usual one; where a parent may name it, any of them.
  CHECK(kinds[4]["if"] == Json::parse(R"({"not": {"required": ["kind"]}})"));
  CHECK_FALSE(kinds[4]["then"]["properties"].contains("shared"));
  const Json part = target(form(schema["then"]["properties"]["attention"], "object"));
  CHECK(part["allOf"][4]["then"]["properties"].contains("shared"));
  CHECK(part["allOf"][4]["then"]["additionalProperties"] == false);
  CHECK(part["allOf"][3]["then"] == kinds[3]["then"]);  // moh holds no kinds
  const Json gated = target(kinds[1]["then"]);
  CHECK(form(gated["properties"]["inner"], "object") == form(whole, "object"));
  CHECK(target(part["allOf"][1]["then"]) != gated);
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
  const Json& size = keys["size"];
  CHECK(size["type"] == Json{"object", "string", "number"});
  CHECK(form(size, "number") == Json::parse(R"({"type": "integer", "minimum": 1, "maximum": 9})"));
  CHECK(form(size, "string") == Json::parse(R"({"enum": ["big"]})"));
  const Json& either = form(size, "object")["anyOf"];  // a mapping of one's own, or of a kind
  REQUIRE(either.size() == 2);
  CHECK(either[0]["properties"]["every"]["minimum"] == 1);
  CHECK(either[0]["additionalProperties"] == false);
  const Json& kinds = either[1]["allOf"];
  REQUIRE(kinds.size() == 3);
  CHECK(kinds[0]["then"]["properties"]["kind"] == Json::parse(R"({"const": "moh"})"));
  CHECK(kinds[2]["then"]["properties"]["active"]["minimum"] == 1);

  const Json& each = schema["else"]["properties"]["each"];
  CHECK(each["patternProperties"].contains("^[0-9]+$"));
  CHECK(each["additionalProperties"] == false);

  CHECK(keys["every"]["default"] == 5);
  CHECK(form(keys["every"], "number") ==
        Json::parse(R"({"type": "integer", "minimum": 0, "maximum": 2147483647})"));
  CHECK(form(keys["every"], "object")["properties"].contains("on"));
  CHECK(form(keys["scale"], "string")["enum"] == Json{"head", "shared"});
  CHECK(form(keys["scale"], "number") == Json::parse(R"({"type": "number"})"));
  CHECK(keys["warmup"]["default"] == 100);
  CHECK(keys["warmup"]["if"] == Json::parse(R"({"multipleOf": 1})"));
  CHECK(keys["warmup"]["then"] ==
        Json::parse(R"({"type": "integer", "minimum": 0, "maximum": 2147483647})"));
  CHECK(keys["warmup"]["else"] ==
        Json::parse(R"({"type": "number", "exclusiveMinimum": 0.0, "exclusiveMaximum": 1.0})"));
  CHECK(keys["seed"]["minimum"] == 0);
  CHECK(keys["seed"]["exclusiveMaximum"] == 0x1p64);
}

TEST_CASE("paths of settings have the schema of any kind that has them") {
  Settings s;
  const SettingsSchema settings(s);
  const Json file = Json::parse(
      settings.file({{"set", settings.paths([](SchemaJson value) { return value; })}}, {"set"}));
  const Json& paths = file["properties"]["set"]["properties"];
  const auto of = [&](const char* path) { return file["$defs"][std::string("set.") + path]; };
  CHECK(paths["steps"]["$ref"] == "#/$defs/set.steps");
  CHECK(of("steps")["minimum"] == 1);
  CHECK(of("log.every")["minimum"] == 1);
  CHECK(of("attention.kind")["enum"] == Json{"files", "gated", "mha", "moh"});
  CHECK(of("attention.shared")["minimum"] == 0);
  CHECK(file["properties"]["set"]["additionalProperties"] == false);
  CHECK(file["properties"]["set"]["patternProperties"].contains("^attention\\.inner\\."));
  CHECK_FALSE(paths.contains("attention.sharde"));
  CHECK(file["required"] == Json{"set"});
}

TEST_CASE("settings of one name in several kinds are as loose as the loosest of them") {
  ValueSchema value;
  value.add("number", {{"type", "integer"}, {"minimum", 3}, {"maximum", 9}});
  value.add("number", {{"type", "number"}, {"exclusiveMinimum", 1}});
  CHECK(value.schema() == SchemaJson({{"type", "number"}, {"exclusiveMinimum", 1}}));
  value = {};
  value.add("number", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}});
  value.add("number", {{"type", "integer"}, {"exclusiveMinimum", 0}, {"maximum", 11}});
  CHECK(value.schema() == SchemaJson({{"type", "integer"}, {"minimum", 0}, {"maximum", 11}}));
  value = {};
  value.add("string", {{"enum", {"a", "b"}}});
  value.add("string", {{"enum", {"b", "c"}}});
  CHECK(value.schema() == SchemaJson({{"type", "string"}, {"enum", {"a", "b", "c"}}}));
}

}  // namespace headlab::test_config_schema
