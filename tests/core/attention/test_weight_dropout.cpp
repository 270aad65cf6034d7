// Dropout of weights by a hash: how many it keeps, that it is a function of the counter, and that
// torch's operations keep the same ones.
#include <cmath>

#include "core/attention/weight_dropout.h"
#include "core/torch.h"
#include "tests/catch.h"

namespace headlab::test_weight_dropout {

TEST_CASE("dropout of weights keeps its share, row by row and key by key, and their sum",
          "[dropout]") {
  const auto ones = at::ones({4, 3, 200, 160});
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto kept = dropout(ones, weight_dropout(p, {.seed = 3, .step = 7}));
    const auto share = (kept > 0).to(at::kFloat);
    INFO("rate " << p);
    // Five standard deviations of a mean of independent draws.
    const auto within = [&](const Tensor& means, double n) {
      return (means - (1 - p)).abs().max().item<double>() < 5 * std::sqrt(p * (1 - p) / n);
    };
    CHECK(within(share.mean(), 4 * 3 * 200 * 160));
    CHECK(within(share.mean(at::IntArrayRef({0, 1, 3})), 4 * 3 * 160));  // of each query
    CHECK(within(share.mean(at::IntArrayRef({0, 1, 2})), 4 * 3 * 200));  // of each key
    CHECK(kept.max().item<double>() == Approx(1 / (1 - p)));
    CHECK(kept.mean().item<double>() == Approx(1).margin(0.02));
  }
}

TEST_CASE("neighbours are dropped apart from each other", "[dropout]") {
  const auto share =
      (dropout(at::ones({2, 4, 256, 256}), weight_dropout(0.5, {.seed = 1})) > 0).to(at::kFloat) -
      0.5;
  for (const int64_t dim : {1, 2, 3}) {
    const int64_t n = share.size(dim) - 1;
    const auto both = share.narrow(dim, 0, n) * share.narrow(dim, 1, n);  // .25 if alike, else -.25
    INFO("dimension " << dim);
    CHECK(std::abs(both.mean().item<double>()) <
          5 * 0.25 / std::sqrt(static_cast<double>(both.numel())));
  }
}

TEST_CASE("dropout of weights is a function of the counter", "[dropout]") {
  const auto ones = at::ones({2, 3, 9, 11});
  const CounterRng counter{.seed = 5, .step = 2, .layer = 1};
  const auto kept = dropout(ones, weight_dropout(0.4, counter));
  CHECK(at::equal(dropout(ones, weight_dropout(0.4, counter)), kept));
  for (auto other :
       {CounterRng{.seed = 6, .step = 2, .layer = 1}, CounterRng{.seed = 5, .step = 3, .layer = 1},
        CounterRng{.seed = 5, .step = 2, .layer = 2}})
    CHECK_FALSE(at::equal(dropout(ones, weight_dropout(0.4, other)), kept));
  CHECK(at::equal(dropout(ones, weight_dropout(0, counter)), ones));
}

TEST_CASE("torch's operations keep the weights that the loops keep", "[dropout]") {
  for (const double p : {0.01, 0.3, 0.97}) {
    const auto how = weight_dropout(p, {.seed = 11, .step = 4});
    const std::vector<int64_t> sizes{3, 2, 17, 65};
    const auto kept = dropout(at::ones(sizes), how) > 0;
    CHECK(at::equal(kept_by_operations(sizes, how, at::kCPU), kept));
  }
}

}  // namespace headlab::test_weight_dropout
