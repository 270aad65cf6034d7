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
  CHECK_FALSE(file.tasks[1].chooses());
  CHECK(file.tasks[0].chooses());
  const auto other = read(changed("base: c.yaml", "base: c.yaml, match: none"));
  CHECK(other.tasks[0].match == Match::kHiddenWidth);
  CHECK(other.tasks[1].match == Match::kNone);
  CHECK_THAT(complaint(changed("base: c.yaml", "base: c.yaml, match: no")),
             Contains("tasks[1].match"));
  const auto late = read(changed("base: c.yaml", "base: c.yaml, choose_at: 0.5"));
  CHECK(ComparisonTask::share_of(late.tasks[0].choose_at, 30) == 7);
  CHECK(ComparisonTask::share_of(late.tasks[1].choose_at, 30) == 15);
  CHECK(ComparisonTask::share_of(late.tasks[1].choose_at, 1) == 1);
  CHECK_THAT(complaint(changed("base: c.yaml", "base: c.yaml, choose_at: 2")),
             Contains("tasks[1].choose_at: must be in (0, 1]"));
  CHECK(read("tasks: [a]\nkinds: [mha]\nrates: 0.01\nseeds: [1, 2]").choose_seeds.empty());
}

TEST_CASE("rates may be searched for, by the whole length where nothing else is said",
          "[compare]") {
  const std::string list = "rates: [2.0e-3, 5.0e-4, 1.0e-3]";
  const auto file = read(changed(list, "rates: {from: 2.0e-3, factor: 3, most: 5}"));
  REQUIRE(file.tasks[0].search.has_value());
  CHECK(file.tasks[0].rates.empty());
  CHECK(file.tasks[0].search->from == 2e-3);
  CHECK(file.tasks[0].search->factor == 3);
  CHECK(file.tasks[0].search->most == 5);
  CHECK(file.tasks[0].choose_at == 1);
  CHECK(file.tasks[0].chooses());
  CHECK(read(changed(list, "rates: {from: 1}")).tasks[1].search->most == 7);
  auto own = changed(list, "rates: {from: 1}");
  own.replace(own.find("base: c.yaml"), 12, "base: c.yaml, rates: [1, 2]");
  CHECK_FALSE(read(own).tasks[1].search.has_value());
  CHECK(read(own).tasks[1].choose_at == 0.25);
  own.replace(own.find("rates: [1, 2]"), 13, "choose_at: 0.5");
  CHECK(read(own).tasks[1].choose_at == 0.5);
  CHECK(read(own).tasks[1].search.has_value());
  CHECK_THAT(complaint(changed(list, "rates: {factor: 2}")), Contains("rates.from: is missing"));
  CHECK_THAT(complaint(changed(list, "rates: {from: 1, factor: 1}")), Contains("rates.factor"));
  CHECK_THAT(complaint(changed(list, "rates: {from: 1, most: 2}")), Contains("rates.most"));
  CHECK_THAT(complaint(changed(list, "rates: {from: 1, mos: 3}")),
             Contains("rates.mos: unknown key of a search for rates; did you mean 'most'?"));
}

TEST_CASE("lengths are shares of the steps and end with the whole", "[compare]") {
  CHECK(read(kWhole).lengths == std::vector<double>{1});
  CHECK(read(kWhole + "lengths: [1, 0.25, 0.5]\n").lengths == std::vector<double>{0.25, 0.5, 1});
  CHECK_THAT(complaint(kWhole + "lengths: [0.5]\n"), Contains("lengths: must end with 1"));
  CHECK_THAT(complaint(kWhole + "lengths: [0.5, 2]\n"), Contains("lengths[1]"));
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
