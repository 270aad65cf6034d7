// Examples put together into one batch.
#include "core/torch.h"
#include "experiments/data/batch.h"
#include "tests/catch.h"

namespace headlab::test_batch {
namespace {

Tensor row(const std::vector<int64_t>& values) { return at::tensor(values).unsqueeze(0); }

}  // namespace

TEST_CASE("batches are joined as wide as the widest, and say how long each example is", "[data]") {
  const Batch a{.ids = row({1, 2, 3}), .targets = row({2, 3, 4}), .source = row({7, 8})};
  const Batch b{.ids = row({5}), .targets = row({6}), .source = row({9, 8})};
  const auto both = joined({a, b}, 0);
  CHECK(both.ids.equal(at::cat({row({1, 2, 3}), row({5, 0, 0})})));
  CHECK(both.targets.equal(at::cat({row({2, 3, 4}), row({6, kIgnored, kIgnored})})));
  CHECK(both.length.equal(at::tensor({3, 1}, at::kLong)));
  CHECK_FALSE(both.source_length.defined());  // all are as long
  CHECK_FALSE(both.image.defined());
  const auto more = joined({both, a}, 0);
  CHECK(more.length.equal(at::tensor({3, 1, 3}, at::kLong)));
  CHECK(more.source.size(0) == 3);
}

TEST_CASE("examples of one length are joined without lengths, images as they are", "[data]") {
  const Batch one{.targets = at::tensor({4}, at::kLong), .image = at::ones({1, 3, 2, 2})};
  const auto two = joined({one, one}, 0);
  CHECK(two.image.sizes() == at::IntArrayRef({2, 3, 2, 2}));
  CHECK(two.targets.equal(at::tensor({4, 4}, at::kLong)));
  CHECK_FALSE(two.length.defined());
  CHECK_FALSE(two.ids.defined());
}

}  // namespace headlab::test_batch
