// The kernels of the CPU exist once for each instruction set, and which one runs can be chosen.
#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <stdexcept>

#include "tests/isa_testing.h"
#include "variants/entmax/alpha_entmax.h"

namespace headlab::test_isa {
using namespace testing;
using Catch::Contains;

namespace {

bool machine_has(Isa isa) {
  const auto here = isas_of_machine();
  return std::find(here.begin(), here.end(), isa) != here.end();
}

}  // namespace

TEST_CASE("HEADLAB_ISA names an instruction set of this machine, or is refused", "[kernels]") {
  CHECK(isa_problem(nullptr).empty());
  CHECK(isa_problem("").empty());
  CHECK(isa_problem("default").empty());
  for (const char* wrong : {"sse9", "AVX2", "avx", " avx2"})
    CHECK(isa_problem(wrong) == std::string("HEADLAB_ISA=") + wrong +
                                    ": no such instruction set; there are avx512, avx2, default");
  for (const Isa isa : all_isas()) {
    if (machine_has(isa)) {
      CHECK(isa_problem(isa_name(isa)).empty());
    } else {
      CHECK_THAT(isa_problem(isa_name(isa)), Contains("this machine has no such instructions; it "
                                                      "has ") &&
                                                 Contains("default"));
      CHECK_THROWS_AS(set_kernel_isa(isa), std::invalid_argument);
    }
  }
}

TEST_CASE("each instruction set has kernels of its own, which compute the same", "[kernels]") {
  std::set<decltype(RowFunctions<double>::weigh)> rows;
  std::array<double, kRowLanes> first{};
  for (const Isa isa : isas_of_machine()) {
    const WithIsa with(isa);
    CHECK(kernel_isa() == isa);
    std::array<double, kRowLanes> row{.3, -1, 2, 1.7, .9};
    std::fill(row.begin() + 5, row.end(), -std::numeric_limits<double>::infinity());
    std::array<double, 2> saved{};
    const auto map = entmax_row_map(1.5);
    map.f64.weigh(row.data(), kRowLanes, map.number, saved.data());
    if (rows.empty()) first = row;
    for (size_t j = 0; j < row.size(); ++j) CHECK(row[j] == Approx(first[j]).margin(1e-14));
    CHECK(rows.insert(map.f64.weigh).second);
  }
}

TEST_CASE("tests run with every instruction set of this machine", "[kernels]") {
  std::string others;
  for (const Isa isa : all_isas())
    if (!machine_has(isa)) others += (others.empty() ? "" : ", ") + std::string(isa_name(isa));
  if (others.empty())
    SUCCEED("it has all of them");
  else
    skip("this processor lacks " + others + ": no test ran with those kernels");
}

}  // namespace headlab::test_isa
