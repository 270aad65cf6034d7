// JSON that nests deeper than a stack.
#include <string>

#include "experiments/files/json_text.h"
#include "tests/catch.h"

namespace headlab {

namespace {

std::string nested(size_t depth, const std::string& inside = "") {
  return std::string(depth, '[') + inside + std::string(depth, ']');
}

}  // namespace

TEST_CASE("a text that nests too deep is none") {
  CHECK(parse_json(nested(500)));
  CHECK_FALSE(parse_json(nested(501)));
  CHECK_FALSE(parse_json(nested(1000000)));
  CHECK(parse_json("[" + nested(400) + ", " + nested(400) + "]"));
  std::string objects;
  for (int n = 0; n < 501; ++n) objects += R"({"a": )";
  CHECK_FALSE(parse_json(objects + "1" + std::string(501, '}')));
}

TEST_CASE("brackets within texts nest nothing, and quotes may be escaped") {
  CHECK(parse_json(R"({"[": ")" + std::string(600, '[') + "\"}"));
  CHECK(parse_json(R"(["\"", ")" + std::string(600, '{') + "\"]"));
  CHECK_FALSE(parse_json(R"(["\\", )" + nested(600) + "]"));
}

TEST_CASE("what is no JSON is none") {
  for (const char* text : {"", "{", "[1,]", "1e999", "\xff", "{} {}"}) {
    INFO(text);
    CHECK_FALSE(parse_json(text));
  }
}

}  // namespace headlab
