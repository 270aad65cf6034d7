// One table, written in four ways.
#include <limits>
#include <stdexcept>

#include "experiments/text/table.h"
#include "tests/catch.h"

namespace headlab::test_table {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Table heads() {
  Table table({{.name = "head", .is_text = true},
               {.name = "loss", .units = "nat", .format = "{:+.2f}"},
               {.name = "examples"},
               {.name = "run", .title = "of", .is_text = true},
               {.name = "seed", .shown = false},
               {.title = "|o|"}});
  table.add({"0:1", 1.0 / 3, int64_t{12}, {"ab, ±", "runs/ab, \"±\""}, int64_t{7}, "a|b"});
  table.add({"1:10", kNaN, Cell(), "", 0.5, Cell()});
  return table;
}

}  // namespace

TEST_CASE("a table for a terminal is aligned, also where letters take several bytes") {
  CHECK(heads().text() ==
        "head  loss [nat]  examples  of     |o|\n"
        "0:1        +0.33        12  ab, ±  a|b\n"
        "1:10           -         -           -\n");
}

TEST_CASE("a table in Markdown says how its columns are aligned, and escapes bars") {
  CHECK(heads().markdown() ==
        "| head | loss [nat] | examples | of | \\|o\\| |\n"
        "|---|--:|--:|---|--:|\n"
        "| 0:1 | +0.33 | 12 | ab, ± | a\\|b |\n"
        "| 1:10 | - | - |  | - |\n");
}

TEST_CASE("a table in CSV has all digits, quotes and columns that are not shown") {
  CHECK(heads().csv() ==
        "head,loss,examples,run,seed\n"
        "0:1,0.3333333333333333,12,\"runs/ab, \"\"±\"\"\",7\n"
        "1:10,,,,0.5\n");
}

TEST_CASE("a table in JSON is an object a row") {
  CHECK(
      heads().json().dump() ==
      R"([{"head":"0:1","loss":0.3333333333333333,"examples":12,"run":"runs/ab, \"±\"","seed":7},)"
      R"({"head":"1:10","loss":null,"examples":null,"run":"","seed":0.5}])");
}

TEST_CASE("a row of a table has as many cells as columns") {
  Table table({{.name = "a"}, {.name = "b"}});
  CHECK_THROWS_AS(table.add({int64_t{1}}), std::logic_error);
  CHECK(table.empty());
}

}  // namespace headlab::test_table
