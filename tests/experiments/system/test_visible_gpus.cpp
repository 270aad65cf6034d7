#include "experiments/system/visible_gpus.h"
#include "tests/catch.h"

namespace headlab::test_visible_gpus {

using Names = std::vector<std::string>;

TEST_CASE("GPUs have the names that this process sees them by") {
  CHECK(visible_gpus(0, "").empty());
  CHECK(visible_gpus(3, "") == Names{"0", "1", "2"});
  CHECK(visible_gpus(2, "4,7") == Names{"4", "7"});
  CHECK(visible_gpus(2, " 4 , 7 ") == Names{"4", "7"});
  CHECK(visible_gpus(2, "GPU-8932f937,MIG-GPU-1/2/0") == Names{"GPU-8932f937", "MIG-GPU-1/2/0"});
  CHECK(visible_gpus(1, "3,99") ==
        Names{"3"});  // CUDA ends its list at the first that is not there
}

}  // namespace headlab::test_visible_gpus
