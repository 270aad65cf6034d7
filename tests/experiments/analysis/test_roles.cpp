// Roles of heads from their statistics.
#include <cmath>

#include "core/config/config.h"
#include "experiments/analysis/head_roles.h"
#include "tests/catch.h"

namespace headlab::test_roles {
using Catch::Contains;

namespace {

using Has = std::vector<uint8_t>;

}  // namespace

TEST_CASE("several roles may hold, and thresholds are where they are published", "[roles]") {
  const auto roles = head_roles({{"positional_share", {0.9, 0.89, NAN}},
                                 {"prev_token", {0.51, 0.5, NAN}},
                                 {"entropy_normalized", {0.784, 0.782, NAN}},
                                 {"first_token", {0.3, 0.31, NAN}},
                                 {"best_gain", {0.1, 0.09, NAN}}});
  CHECK(roles.at("positional") == Has{1, 0, 0});
  CHECK(roles.at("previous") == Has{1, 0, 0});
  CHECK(roles.at("broad") == Has{1, 0, 0});
  CHECK(roles.at("sink") == Has{0, 1, 0});
  CHECK(roles.at("syntactic") == Has{1, 0, 0});
  CHECK(roles.size() == 5);  // the others have no statistic
}

TEST_CASE("thresholds are options", "[roles]") {
  const auto rules = role_rules_with({"sink=0.5", "previous=1e-1"});
  const auto roles = head_roles({{"first_token", {0.4}}, {"prev_token", {0.2}}}, rules);
  CHECK(roles.at("sink") == Has{0});
  CHECK(roles.at("previous") == Has{1});
  for (const auto& rule : rules)
    if (rule.name == "sink") CHECK(rule.formula() == "first_token > 0.5");
  CHECK(role_rules().size() == 12);
}

TEST_CASE("a threshold that is none is refused", "[roles]") {
  CHECK_THROWS_WITH(role_rules_with({"sinks=0.5"}), Contains("did you mean 'sink'"));
  for (const char* wrong : {"sink", "sink=", "sink=much", "sink=0.5x", "sink=nan"})
    CHECK_THROWS_AS(role_rules_with({wrong}), ConfigError);
}

}  // namespace headlab::test_roles
