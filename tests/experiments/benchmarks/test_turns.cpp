// Turns of two sides, and what is made of their times.
#include <string>

#include "experiments/benchmarks/turns.h"
#include "tests/catch.h"

namespace headlab::test_turns {
namespace {

TEST_CASE("the first pass of a turn does not count, and at least two do") {
  std::vector<double> seconds{1, 5, 3};
  size_t passes = 0;
  CHECK(shortest_of_turn([&] { return seconds.at(passes++); }, 0) == 3);
  CHECK(passes == 3);
}

TEST_CASE("the order of two sides changes from round to round") {
  std::string order;
  PairedTimes times;
  for (int round = 0; round < 3; ++round)
    add_round(
        times,
        [&] {
          order += 'a';
          return 2.0;
        },
        [&] {
          order += 'b';
          return 4.0;
        });
  CHECK(order == "baabba");
  CHECK(times.own == std::vector<double>{2, 2, 2});
  CHECK(times.beside == std::vector<double>{4, 4, 4});
  CHECK(ratios_of(times) == std::vector<double>{.5, .5, .5});
}

TEST_CASE("a spread has the least, the middle and the most") {
  const auto odd = range_of({3, 1, 2}), even = range_of({4, 1, 2, 3});
  CHECK((odd.least == 1 && odd.median == 2 && odd.most == 3));
  CHECK((even.least == 1 && even.median == 2.5 && even.most == 4));
  CHECK_THROWS(range_of({}));
  CHECK_THROWS(ratios_of({{1}, {}}));
}

TEST_CASE("what is timed runs once") {
  int runs = 0;
  CHECK(timed(c10::Device(c10::kCPU), [&] { ++runs; }) >= 0);
  CHECK(runs == 1);
}

}  // namespace
}  // namespace headlab::test_turns
