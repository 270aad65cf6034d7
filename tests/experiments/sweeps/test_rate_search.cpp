// The search for a learning rate, played with losses that are known.
#include <cmath>
#include <functional>
#include <set>

#include "experiments/sweeps/rate_search.h"
#include "tests/catch.h"

namespace headlab::test_rate_search {
namespace {

using Loss = std::function<std::optional<double>(int64_t k, size_t seed)>;  // none: it diverges

struct Played {
  TriedRates tried;
  int trainings = 0;
};

Played play(const RateGrid& grid, size_t seeds, const Loss& loss) {
  Played played;
  for (;;) {
    const auto next = next_trainings(grid, played.tried, seeds);
    if (next.empty()) return played;
    for (const auto& [k, seed] : next) {
      auto& rate = played.tried[k];
      rate.losses.resize(seeds);
      REQUIRE_FALSE(rate.losses[seed].has_value());  // nothing is trained twice
      const auto found = loss(k, seed);
      if (!found) rate.lost = true;
      rate.losses[seed] = found;
      ++played.trainings;
    }
    REQUIRE(played.trainings < 100);
  }
}

Loss valley(double lowest) {
  return [=](int64_t k, size_t) {
    return std::optional(std::pow(static_cast<double>(k) - lowest, 2));
  };
}

}  // namespace

TEST_CASE("a search widens until the best rate lies inside, on either side", "[rates]") {
  for (const int lowest : {-4, -2, -1, 0, 1, 3, 4}) {
    INFO("lowest at " << lowest);
    const auto played = play({.from = 2e-3, .factor = 2, .most = 9}, 2, valley(lowest));
    REQUIRE(best_rate(played.tried) == lowest);
    REQUIRE_FALSE(is_at_edge(played.tried));
    REQUIRE(played.tried.count(lowest - 1));
    REQUIRE(played.tried.count(lowest + 1));
    for (const int64_t k : {lowest - 1, lowest, lowest + 1})
      REQUIRE(played.tried.at(k).is_complete());
    // the second seed is for the best and its neighbours alone
    REQUIRE(played.trainings == std::ssize(played.tried) + 3);
  }
}

TEST_CASE("a search that meets its bound says so", "[rates]") {
  const auto played = play({.from = 1e-3, .factor = 2, .most = 4}, 1, valley(10));
  REQUIRE(played.tried.size() == 4);
  REQUIRE(best_rate(played.tried) == 2);
  REQUIRE(is_at_edge(played.tried));
}

TEST_CASE("a rate that diverges is a neighbour of the best like any other", "[rates]") {
  const auto played = play({.from = 1e-3}, 2, [](int64_t k, size_t) {
    return k > 0 ? std::nullopt : std::optional(static_cast<double>(-k));
  });
  REQUIRE(best_rate(played.tried) == 0);
  REQUIRE_FALSE(is_at_edge(played.tried));
  REQUIRE(played.tried.at(1).lost);
  REQUIRE(played.trainings == 3 + 2);  // it is not trained with the other seed
}

TEST_CASE("where all rates diverge lower ones are tried", "[rates]") {
  const auto found = play({.from = 1, .most = 7}, 1, [](int64_t k, size_t) {
    return k > -3 ? std::nullopt : std::optional(std::abs(static_cast<double>(k) + 4));
  });
  REQUIRE(best_rate(found.tried) == -4);
  REQUIRE_FALSE(is_at_edge(found.tried));
  const auto none = play({.from = 1, .most = 5}, 1, [](int64_t, size_t) { return std::nullopt; });
  REQUIRE_FALSE(best_rate(none.tried).has_value());
  REQUIRE(none.trainings == 5);
}

TEST_CASE("the second seed may move the best, whose neighbours are tried then", "[rates]") {
  // seed 0 likes 0, seed 1 likes 1 much more
  const auto played = play({.from = 1e-3}, 2, [](int64_t k, size_t seed) {
    const double away = static_cast<double>(k) - (seed == 0 ? 0 : 1);
    return std::optional((seed == 0 ? 1 : 4) * away * away);
  });
  REQUIRE(best_rate(played.tried) == 1);
  REQUIRE(runner_up(played.tried) == 0);
  REQUIRE_FALSE(is_at_edge(played.tried));
  REQUIRE(played.tried.at(2).is_complete());
}

TEST_CASE("one choosing seed asks for no other", "[rates]") {
  const auto played = play({.from = 1e-3}, 1, valley(0));
  REQUIRE(played.trainings == 3);
}

TEST_CASE("rates are written as one writes them", "[rates]") {
  const RateGrid grid{.from = 1e-3, .factor = 2};
  REQUIRE(grid.rate(1) == 2e-3);
  REQUIRE(grid.rate(3) == 8e-3);
  REQUIRE(grid.rate(-1) == 5e-4);
  REQUIRE(RateGrid{.from = 3e-4, .factor = 3}.rate(2) == 2.7e-3);
}

}  // namespace headlab::test_rate_search
