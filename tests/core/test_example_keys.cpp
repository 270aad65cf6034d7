// Kinds whose keys are not one for each token, against the formulas that they are of: one with
// fewer keys than tokens (pooled_head.cpp), and one that chooses blocks by content
// (chosen_blocks_head.cpp).
#include <cmath>

#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_example_keys {
using namespace testing;

namespace {

Tensor parameter(const AttentionHeads& layer, const std::string& name) {
  return layer.named_parameters()[name];
}

}  // namespace

TEST_CASE("the kind with fewer keys attends to means of two tokens and caches one for two",
          "[example]") {
  const auto layer = make_layer("pooled", small_shape());
  at::NoGradGuard no_grad;
  const auto x = random({2, 9, 20});
  auto heads = [&](const Tensor& of, const char* name) {
    return at::linear(of, parameter(*layer, name)).view({2, of.size(1), 4, 6}).transpose(1, 2);
  };
  const auto pairs = x.narrow(1, 0, 8).view({2, 4, 2, 20}).mean(2);  // projections are linear
  const auto z = at::matmul(heads(x, "q.weight"), heads(pairs, "k.weight").transpose(2, 3));
  const auto seen = at::arange(4) * 2 + 1 <= at::arange(9).unsqueeze(1);  // [T,n]
  const auto e = (z / std::sqrt(6.)).exp() * seen;
  const auto o = at::matmul(e / (1 + e.sum(-1, true)), heads(pairs, "v.weight"));
  const auto y = at::linear(o.transpose(1, 2).reshape({2, 9, 24}), parameter(*layer, "o.weight"));
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-12);
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  layer->forward(x, ctx);
  REQUIRE(cache.entries("k") == 4);
  REQUIRE(cache.bytes() == 2 * (4 + 1) * x.size(0) * 4 * 6 * 8);  // and the ninth token
}

TEST_CASE("the kind that chooses blocks is plain attention over what each query chose",
          "[example]") {
  const auto layer = make_layer("chosen_blocks", small_shape(4, 2), ", block: 3, selected: 2");
  at::NoGradGuard no_grad;
  const auto x = random({2, 17, 20});
  auto heads = [&](const char* name, int64_t H) {
    return at::linear(x, parameter(*layer, name)).view({2, 17, H, 6}).transpose(1, 2);
  };
  const auto q = heads("q.weight", 4), k = heads("k.weight", 2).repeat_interleave(2, 1);
  const auto s = at::matmul(q, k.narrow(2, 0, 15).unflatten(2, {5, 3}).mean(3).transpose(2, 3));
  auto seen = at::zeros({2, 4, 17, 17}, at::kBool);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 17; ++i) {
        const int64_t own = i / 3;
        auto row = seen[b][h][i];
        row.slice(0, own * 3, i + 1).fill_(true);
        if (own == 0) continue;
        const auto best = s[b][h][i].narrow(0, 0, own).argmax().item<int64_t>();
        row.slice(0, best * 3, best * 3 + 3).fill_(true);
      }
  const auto z = at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.);
  const auto a = at::softmax(z.masked_fill(seen.logical_not(), kHiddenScore), -1);
  const auto o = at::matmul(a, heads("v.weight", 2).repeat_interleave(2, 1));
  const auto y = at::linear(o.transpose(1, 2).reshape({2, 17, 24}), parameter(*layer, "o.weight"));
  REQUIRE(difference(layer->forward(x, causal()).y, y) < 1e-12);
}

}  // namespace headlab::test_example_keys
