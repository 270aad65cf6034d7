// BLEU against sacreBLEU's scores and counts.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/inference/bleu.h"
#include "headlab_build.h"
#include "tests/catch.h"

namespace headlab::test_bleu {
namespace {

TEST_CASE("BLEU is what sacreBLEU says, counts and lengths too") {
  const auto path = std::filesystem::path(build::kSourceDir) / "tests/golden/models/bleu.json";
  const auto file = nlohmann::json::parse(std::ifstream(path));
  REQUIRE(file["cases"].size() >= 7);
  for (const auto& c : file["cases"]) {
    INFO(c["name"]);
    Bleu bleu;
    REQUIRE(c["hyp"].size() == c["ref"].size());
    for (size_t n = 0; n < c["hyp"].size(); ++n)
      bleu.add(c["hyp"][n].get<std::string>(), c["ref"][n].get<std::string>());
    CHECK(bleu.score() == Approx(c["bleu_none"].get<double>()).epsilon(1e-12));
    CHECK(bleu.smoothed_score() == Approx(c["bleu_exp"].get<double>()).epsilon(1e-12));
    CHECK(bleu.matches == c["counts"].get<std::array<int64_t, 4>>());
    CHECK(bleu.totals == c["totals"].get<std::array<int64_t, 4>>());
    CHECK(bleu.brevity_penalty() == Approx(c["brevity_penalty"].get<double>()).epsilon(1e-12));
    CHECK(bleu.hypothesis_tokens == c["hyp_len"].get<int64_t>());
    CHECK(bleu.reference_tokens == c["ref_len"].get<int64_t>());
  }
}

TEST_CASE("BLEU of nothing, and of texts too short for four tokens, is 0") {
  Bleu nothing;
  CHECK(nothing.score() == 0);
  nothing.add("", "a b");
  CHECK(nothing.score() == 0);
  CHECK(nothing.smoothed_score() == 0);
  Bleu brief;
  brief.add("a b c", "a b c");
  CHECK(brief.score() == 0);
  CHECK(brief.smoothed_score() == 0);
}

}  // namespace
}  // namespace headlab::test_bleu
