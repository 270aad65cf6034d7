// Whether a tensor's numbers are any.
#include <limits>

#include "core/attention/call/masks.h"
#include "core/attention/precision.h"
#include "core/torch.h"
#include "tests/catch.h"

namespace headlab::test_precision {

// One NaN or infinity is found wherever it stands: in small tensors, which are read in stretches,
// in any layout, and in large ones.
TEST_CASE("sums_are_finite finds each number that is none") {
  const auto layout =
      GENERATE(as<std::string>(), "whole", "cached", "turned", "one key", "double", "large");
  auto t = at::ones({2, 3, 40, 5});
  if (layout == "cached") t = t.narrow(2, 3, 17);
  if (layout == "turned") t = t.transpose(1, 3);
  if (layout == "one key") t = t.narrow(2, 3, 1);
  if (layout == "double") t = t.to(at::kDouble);
  if (layout == "large") t = at::ones({40, 500});
  CAPTURE(layout);
  CHECK(sums_are_finite(t));
  const int64_t step = layout == "large" ? 997 : 1;
  for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), kHiddenScore, -kHiddenScore})
    for (int64_t place = 0; place < t.numel(); place += step) {
      auto index = place;
      auto one = t;
      while (one.dim() > 0) {
        const int64_t n = one.size(0);
        one = one.select(0, index % n);
        index /= n;
      }
      one.fill_(wrong);
      if (sums_are_finite(t)) FAIL_CHECK(wrong << " at " << place);
      one.fill_(1);
    }
  CHECK(sums_are_finite(t));
  CHECK(sums_are_finite(t.narrow(0, 0, 0)));
}

TEST_CASE("-inf in a bias of any layout hides its key, and nothing else does") {
  for (const bool turned : {false, true})
    for (int64_t place = 0; place < 12; ++place) {
      auto bias = turned ? at::zeros({1, 1, 4, 3}).transpose(2, 3) : at::zeros({1, 1, 3, 4});
      bias.index_put_({0, 0, place / 4, place % 4}, kHiddenScore);
      Tensor allowed;
      hide_by_bias(bias, allowed);
      REQUIRE(allowed.defined());
      CHECK(allowed.logical_not().sum().item<int64_t>() == 1);
      CHECK_FALSE(allowed.index({0, 0, place / 4, place % 4}).item<bool>());
      CHECK(bias.eq(0).all().item<bool>());
    }
  auto bias = at::full({1, 1, 3, 4}, -1e30);
  Tensor allowed;
  hide_by_bias(bias, allowed);
  CHECK_FALSE(allowed.defined());
}

}  // namespace headlab::test_precision
