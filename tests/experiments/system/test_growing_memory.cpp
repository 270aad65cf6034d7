// Memory that grows without copies.
#include "experiments/system/growing_memory.h"
#include "tests/catch.h"

namespace headlab::test_growing_memory {

TEST_CASE("bytes stay as they were while more come behind them") {
  GrowingMemory memory;
  CHECK(memory.bytes().empty());
  memory.append("");
  std::string all;
  for (size_t n = 0; n < 400; ++n) {
    const std::string more(n * 11, static_cast<char>('a' + n % 26));
    memory.append(more);
    all += more;
    if (n % 50 == 0) CHECK((memory.bytes() == all));
  }
  memory.append(std::string(5 << 20, 'z'));  // more at once than twice what is there
  all += std::string(5 << 20, 'z');
  CHECK((memory.bytes() == all));
}

}  // namespace headlab::test_growing_memory
