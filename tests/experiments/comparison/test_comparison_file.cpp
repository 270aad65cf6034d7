// What a comparison file says, and what is said of its mistakes.
#include "experiments/comparison/comparison_file.h"
#include "tests/catch.h"
#include "tests/config_testing.h"

namespace headlab::test_comparison_file {
namespace {

using Catch::Contains;

const std::string kWhole = R"(tasks: [a.yaml, {name: b, base: c.yaml, set: {model.layers: 2}}]
kinds: [mha, {name: one, set: {model.heads: 1}}, {name: wide, attention: {kind: moh}}]
rates: [2.0e-3, 5.0e-4, 1.0e-3]
choose_seeds: 6
seeds: [1, 2, 3, 4, 5]
)";

ComparisonFile read(const std::string& yaml) { return read_comparison(parse_config(yaml, "c")); }

std::string complaint(const std::string& yaml) {
  return config_testing::error_of([&] { read(yaml); });
}

std::string changed(const std::string& old, const std::string& fresh) {
  auto text = kWhole;
  const auto at = text.find(old);
  REQUIRE(at != text.npos);
  return text.replace(at, old.size(), fresh);
}

TEST_CASE("tasks are configs, with settings of their own where they are mappings", "[compare]") {
  const auto file = read(kWhole);
  REQUIRE(file.tasks.size() == 2);
  CHECK(file.tasks[0].name == "a");
  CHECK(file.tasks[0].settings.empty());
  CHECK(file.tasks[1].name == "b");
  CHECK(file.tasks[1].base.text == "c.yaml");
  REQUIRE(file.tasks[1].settings.size() == 1);
  CHECK(file.tasks[1].settings[0].first == "model.layers");
  CHECK(file.tasks[0].rates == std::vector<double>{5e-4, 1e-3, 2e-3});
  CHECK(file.choose_seeds == std::vector<int64_t>{6});
  CHECK(file.tasks[0].match == Match::kHiddenWidth);
}

TEST_CASE("a word is a kind of heads, and mappings set what they say", "[compare]") {
  const auto file = read(kWhole);
  REQUIRE(file.arms.size() == 3);
  CHECK(file.arms[0].name == "mha");
  CHECK(file.arms[0].settings[0].first == "model.attention");
  CHECK(file.arms[1].settings[0].first == "model.heads");
  CHECK(file.arms[2].settings[0].first == "model.attention");
  CHECK(to_flow(file.arms[2].settings[0].second) == "{kind: moh}");
}

TEST_CASE("the baseline is named, or mha, or the first arm", "[compare]") {
  CHECK(read(changed("[mha, ", "[moh, mha, ")).baseline == 1);
  CHECK(read(changed("[mha, ", "[moh, ")).baseline == 0);
  CHECK(read(kWhole + "baseline: wide\n").baseline == 2);
  CHECK_THAT(complaint(kWhole + "baseline: wid\n"),
             Contains("c:6:11: baseline: no arm is called 'wid'; did you mean 'wide'?"));
}

TEST_CASE("a task may have rates of its own, and with one rate nothing is chosen", "[compare]") {
  const auto file = read(changed("base: c.yaml", "base: c.yaml, rates: 0.01"));
  CHECK(file.tasks[1].rates == std::vector<double>{0.01});
  CHECK_FALSE(ComparisonFile::chooses(file.tasks[1]));
  CHECK(ComparisonFile::chooses(file.tasks[0]));
  const auto other = read(changed("base: c.yaml", "base: c.yaml, match: none"));
  CHECK(other.tasks[0].match == Match::kHiddenWidth);
  CHECK(other.tasks[1].match == Match::kNone);
  CHECK_THAT(complaint(changed("base: c.yaml", "base: c.yaml, match: no")),
             Contains("tasks[1].match"));
  const auto late = read(changed("base: c.yaml", "base: c.yaml, choose_at: 0.5"));
  CHECK(late.tasks[0].choosing_steps(30) == 7);
  CHECK(late.tasks[1].choosing_steps(30) == 15);
  CHECK(late.tasks[1].choosing_steps(1) == 1);
  CHECK_THAT(complaint(changed("base: c.yaml", "base: c.yaml, choose_at: 2")),
             Contains("tasks[1].choose_at: must be in (0, 1]"));
  CHECK(read("tasks: [a]\nkinds: [mha]\nrates: 0.01\nseeds: [1, 2]").choose_seeds.empty());
}

TEST_CASE("a seed that rates are chosen on is none of the compared", "[compare]") {
  CHECK_THAT(complaint(changed("choose_seeds: 6", "choose_seeds: [6, 3]")),
             Contains("c:4:15: choose_seeds: 3 is one of seeds"));
  CHECK_THAT(complaint(changed("choose_seeds: 6\n", "")), Contains("choose_seeds: is missing"));
}

TEST_CASE("every mistake of a comparison file is named with its place", "[compare]") {
  CHECK_THAT(complaint("{}"), Contains("tasks: is missing") && Contains("kinds: is missing") &&
                                  Contains("seeds: must be at least two"));
  CHECK_THAT(complaint(kWhole + "mach: none\n"),
             Contains("c:6:1: mach: unknown key of a comparison; did you mean 'match'?"));
  CHECK_THAT(complaint(changed("base: c.yaml", "bas: c.yaml")),
             Contains("tasks[1].bas: unknown key of a task; did you mean 'base'?"));
  CHECK_THAT(complaint(changed("name: one, set", "name: one, st")),
             Contains("kinds[1].st: unknown key of an arm; did you mean 'set'?"));
  CHECK_THAT(complaint(changed("name: one", "name: mha")),
             Contains("c:2:14: kinds[1]: 'mha' stands there already"));
  CHECK_THAT(complaint(changed("model.heads: 1", "train.lr: 1")),
             Contains("kinds[1].set.train.lr: is chosen for each arm; write `rates`"));
  CHECK_THAT(complaint(changed("model.layers: 2", "seed: 1")),
             Contains("tasks[1].set.seed: is set by the comparison; write `seeds`"));
  CHECK_THAT(complaint(changed("5.0e-4", "0")), Contains("rates[1]"));
  CHECK_THAT(complaint(changed("4, 5]", "4, 4]")), Contains("seeds[4]: 4 stands there already"));
  CHECK_THAT(complaint(changed("[1, 2, 3, 4, 5]", "1")), Contains("seeds: must be at least two"));
  CHECK_THAT(complaint(kWhole + "match: heads\n"), Contains("c:6:8: match"));
  CHECK_THAT(complaint(changed("rates: [2.0e-3, 5.0e-4, 1.0e-3]\n", "")),
             Contains("has no learning rates"));
}

}  // namespace
}  // namespace headlab::test_comparison_file
