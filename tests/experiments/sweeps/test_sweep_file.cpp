// Which points a sweep file has, and what is said of its mistakes.
#include <fmt/format.h>

#include "experiments/sweeps/sweep_file.h"
#include "tests/catch.h"

namespace headlab::test_sweep_file {
namespace {

using Catch::Contains;

SweepFile read(const std::string& yaml) { return read_sweep(parse_config(yaml, "s.yaml")); }

// The points as lines of settings.
std::vector<std::string> lines(const std::string& yaml) {
  std::vector<std::string> all;
  for (const auto& point : points_of(read(yaml))) {
    std::string line = point.base.text;
    for (const auto& [key, value] : point.settings)
      line += fmt::format(" {}={}", key, to_flow(value));
    all.push_back(line);
  }
  return all;
}

std::string complaint(const std::string& yaml) {
  try {
    points_of(read(yaml));
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("a sweep without axes has its bases as points", "[sweep]") {
  CHECK(lines("base: a.yaml") == std::vector<std::string>{"a.yaml"});
  CHECK(lines("base: [a.yaml, b.yaml]") == std::vector<std::string>{"a.yaml", "b.yaml"});
}

TEST_CASE("a grid has every combination, the last key changing fastest", "[sweep]") {
  CHECK(lines("base: a\ngrid: {k: [x, {kind: moh, active: 2}], seed: [1, 2]}") ==
        std::vector<std::string>{"a k=x seed=1", "a k=x seed=2",
                                 "a k={kind: moh, active: 2} seed=1",
                                 "a k={kind: moh, active: 2} seed=2"});
}

TEST_CASE("lists of zip go together, beside the grid", "[sweep]") {
  CHECK(lines("base: a\ngrid: {seed: [1, 2]}\nzip: {x: [3, 4], y: [5, 5]}") ==
        std::vector<std::string>{"a seed=1 x=3 y=5", "a seed=1 x=4 y=5", "a seed=2 x=3 y=5",
                                 "a seed=2 x=4 y=5"});
}

TEST_CASE("points that match all of an entry are left out", "[sweep]") {
  const std::string grid = "base: [a, b]\ngrid: {lr: [0.001, 0.01], seed: [1, 2]}\n";
  CHECK(lines(grid + "exclude: [{lr: 1e-3, base: a}, {seed: 2}]") ==
        std::vector<std::string>{"a lr=0.01 seed=1", "b lr=0.001 seed=1", "b lr=0.01 seed=1"});
}

TEST_CASE("every mistake of a sweep file is named with its place", "[sweep]") {
  CHECK(complaint("grid: {seed: [1]}") ==
        "s.yaml:1:1: base: is missing; write base: <a config, or a list>");
  CHECK(complaint("base: a\ngird: {seed: [1]}") ==
        "s.yaml:2:1: gird: unknown key of a sweep; did you mean 'grid'?");
  CHECK(complaint("base: a\ngrid: {seed: 1}") ==
        "s.yaml:2:14: grid.seed: must be a list of values, as in [1, 2, 3]");
  CHECK_THAT(complaint("base: a\ngrid: [seed]"), Contains("grid: must be a mapping of keys"));
  CHECK_THAT(complaint("base: a\ngrid: {seed: [1, 2, 1]}"),
             Contains("s.yaml:2:21: grid.seed[2]: 1 stands there already"));
  CHECK_THAT(complaint("base: a\ngrid: {seed: [1, ]}\nzip: {}"), Contains("zip: must be"));
  CHECK_THAT(complaint("base: a\nzip: {x: [1, 2], y: [1, 2, 3]}"),
             Contains("zip.y: has 3 values, x has 2"));
  CHECK_THAT(complaint("base: a\ngrid: {x: [1]}\nzip: {x: [2]}"),
             Contains("x: stands in both grid and zip"));
  CHECK_THAT(complaint("base: a\ngrid: {m.a: [{kind: x}], m.a.kind: [y]}"),
             Contains("m.a.kind: lies in m.a, which changes too"));
  CHECK_THAT(complaint("base: a\ngrid: {base: [b]}"), Contains("write base: [...] at the top"));
  CHECK_THAT(complaint("base: [a, a]"), Contains("a is named twice"));
}

TEST_CASE("an exclusion that leaves nothing out is a mistake", "[sweep]") {
  const std::string grid = "base: a\ngrid: {train.lr: [1, 2], seed: [1, 2]}\n";
  CHECK_THAT(complaint(grid + "exclude: [{train.rl: 1}]"),
             Contains("no axis has this key; did you mean 'train.lr'?"));
  CHECK_THAT(complaint(grid + "exclude: [{seed: 3}]"), Contains("no point has the value 3"));
  CHECK_THAT(complaint(grid + "exclude: [{seed: 1}, {seed: 1, train.lr: 2}]"),
             Contains("exclude[1]: matches no point"));
  CHECK_THAT(complaint(grid + "exclude: [{seed: 1}, {seed: 2}]"), Contains("leaves no point"));
}

TEST_CASE("a grid beyond all bounds is refused before it is made", "[sweep]") {
  std::string list = "[";
  for (int i = 0; i < 1000; ++i) list += fmt::format("{}, ", i);
  list.back() = ']';
  CHECK_THAT(complaint(fmt::format("base: a\ngrid: {{a: {0}, b: {0}, c: {0}}}", list)),
             Contains("has more than 100000 points"));
}

}  // namespace
}  // namespace headlab::test_sweep_file
