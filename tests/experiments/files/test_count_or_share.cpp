// A count or a share: read, applied and written.
#include <utility>
#include <vector>

#include "experiments/files/count_or_share.h"
#include "tests/catch.h"

namespace headlab::test_count_or_share {

TEST_CASE("a count or a share is written as it was read") {
  struct Warm : Block {
    CountOrShare warmup = 100;
    void visit(Fields& f) override { f("warmup", warmup, "updates, or a share"); }
  };
  const auto read = [](const std::string& text) {
    Warm warm;
    read_config(warm, parse_config(text, "test.yaml"));
    return warm;
  };
  for (const auto& [text, of_250] : std::vector<std::pair<std::string, int64_t>>{
           {"0", 0}, {"7", 7}, {"400", 400}, {"0.1", 25}}) {
    auto warm = read("warmup: " + text);
    CHECK(warm.warmup.of(250) == of_250);
    CHECK(to_yaml(write_block(warm)) == "warmup: " + text + "\n");
  }
  for (const char* wrong : {"-1", "1.5", "soon", "-0.5", "[1]"})
    CHECK_THROWS_WITH(read(std::string("warmup: ") + wrong),
                      Catch::Contains("test.yaml:1:9: warmup: must be"));
}

}  // namespace headlab::test_count_or_share
