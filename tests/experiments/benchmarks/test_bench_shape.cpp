// Shapes of layers that are timed, as they are written.
#include "core/config/config.h"
#include "experiments/benchmarks/bench_shape.h"
#include "tests/catch.h"

namespace headlab::test_bench_shape {
namespace {

using Catch::Contains;

std::string refusal(const std::string& word) {
  try {
    bench_shape(word);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a shape reads back as it is written") {
  const auto shape = bench_shape("12x64x128x4");
  CHECK(shape.batch == 12);
  CHECK(shape.tokens == 64);
  CHECK(shape.width == 128);
  CHECK(shape.heads == 4);
  CHECK(shape.text() == "12x64x128x4");
}

TEST_CASE("a malformed shape is refused with the place and the remedy") {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "character 1: BATCH must be a whole number"},
      {"12", "character 3: an x and TOKENS must follow"},
      {"12x", "character 4: TOKENS must be a whole number"},
      {"12x64y128x4", "character 6: an x and WIDTH must follow"},
      {"12x64x128x4x1", "character 12: it must end here"},
      {"12x64x128x4 ", "character 12: it must end here"},
      {"0x64x128x4", "character 1: BATCH must be a whole number from 1"},
      {"-1x64x128x4", "character 1: BATCH must be a whole number from 1"},
      {"1x1x99999999999999999999x4", "character 5: WIDTH must be a whole number"},
      {"12x64x128x5", "WIDTH 128 must be a multiple of HEADS 5"}};
  for (const auto& [word, part] : wrong) {
    INFO(word);
    const auto said = refusal(word);
    CHECK_THAT(said, Catch::Matchers::StartsWith(std::string("--shape ") + word + ": "));
    CHECK_THAT(said, Contains(part));
    CHECK_THAT(said, Contains("write BATCHxTOKENSxWIDTHxHEADS, such as 12x64x128x4"));
  }
}

}  // namespace
}  // namespace headlab::test_bench_shape
