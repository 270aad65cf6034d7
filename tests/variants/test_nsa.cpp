// Native sparse attention: its equations written out, branches closed by their gates, reductions,
// hidden tokens, decoding, kernels and slices.
#include <fmt/format.h>

#include "tests/choice_testing.h"

namespace headlab::test_nsa {
using namespace testing;

namespace {

const std::string kSmall =
    ", block: 4, compress_block: 2, stride: 1, selected: 3, first_blocks: 1, local_blocks: 1, "
    "window_tokens: 3";
const std::string kEven =
    ", block: 4, compress_block: 4, stride: 2, selected: 2, first_blocks: 0, local_blocks: 1, "
    "window_tokens: 5";

Tensor heads_of(const Layer& layer, const Tensor& x, const char* name, int64_t H) {
  return split_heads(at::linear(x, parameter(layer, name)), H);
}

// Closes and opens branches: 1 is open.
void open(const Layer& layer, const std::vector<double>& branches) {
  const auto biases = at::tensor(branches, at::kDouble) * 1600 - 800;
  set(layer, "gate.bias", biases.repeat({kHeads}));
  set(layer, "gate.weight", at::zeros({3 * kHeads, 20}));
}

// What a query does in nsa, one query after the other, for the means of keys and values.
struct ByHand {
  int64_t b, l, s, n, first, local, W;

  // Softmax of the scores at `keys` times the values there.
  static Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) {
    return at::softmax(at::mv(k, q) / std::sqrt(6.), 0).unsqueeze(0).mm(v)[0];
  }
  // q [G,T,d] of a group, k, v [T,d], gates [G,T,3] -> [G,T,d].
  Tensor group(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gates) const {
    auto out = at::zeros_like(q);
    for (int64_t i = 0; i < q.size(1); ++i) {
      std::vector<Tensor> ck, cv;
      for (int64_t c = 0; c * s + l - 1 <= i; ++c) {
        ck.push_back(k.narrow(0, c * s, l).mean(0));
        cv.push_back(v.narrow(0, c * s, l).mean(0));
      }
      const auto tokens = chosen(q.select(1, i), ck, i);
      const int64_t begin = std::max<int64_t>(0, i - W + 1);
      for (int64_t g = 0; g < q.size(0); ++g) {
        auto o =
            gates[g][i][1] * attend(q[g][i], k.index_select(0, tokens), v.index_select(0, tokens)) +
            gates[g][i][2] * attend(q[g][i], k.slice(0, begin, i + 1), v.slice(0, begin, i + 1));
        if (!ck.empty()) o = o + gates[g][i][0] * attend(q[g][i], at::stack(ck), at::stack(cv));
        out[g][i] = o;
      }
    }
    return out;
  }
  // The tokens that query i of a group sees in full; q [G,d].
  Tensor chosen(const Tensor& q, const std::vector<Tensor>& ck, int64_t i) const {
    std::vector<double> score(i / b + 1, 0.0);
    for (int64_t g = 0; g < q.size(0) && !ck.empty(); ++g) {
      const auto p = at::softmax(at::mv(at::stack(ck), q[g]) / std::sqrt(6.), 0);
      for (int64_t c = 0; c < std::ssize(ck); ++c)
        for (int64_t chunk = c; chunk < c + l / s; ++chunk)
          if (const int64_t j = chunk * s / b; j < std::ssize(score))
            score[j] += p[c].item<double>();
    }
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t j = 0; j < std::ssize(score); ++j)
      order.emplace_back(j < first || j > i / b - local ? -1e9 : -score[j], j);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> tokens;
    for (int64_t m = 0; m < std::min<int64_t>(n, std::ssize(order)); ++m)
      for (int64_t t = order[m].second * b; t < std::min(i + 1, (order[m].second + 1) * b); ++t)
        tokens.push_back(t);
    return at::tensor(tokens, at::kLong);
  }
};

}  // namespace

TEST_CASE("nsa is its three branches, with one choice for the heads of a group", "[nsa]") {
  for (const auto& [options, hand] :
       {std::pair(kSmall, ByHand{4, 2, 1, 3, 1, 1, 3}), {kEven, ByHand{4, 4, 2, 2, 0, 1, 5}}}) {
    INFO(options);
    const auto layer = make_layer("nsa", small_shape(4, 2), options);
    const auto x = random({2, 21, 20});
    const auto q = heads_of(layer, x, "q.weight", 4), k = heads_of(layer, x, "k.weight", 2),
               v = heads_of(layer, x, "v.weight", 2);
    const auto gates = at::sigmoid(at::linear(x, parameter(layer, "gate.weight")))
                           .view({2, 21, 4, 3})
                           .transpose(1, 2);  // [B,H,T,3]
    auto o = at::zeros_like(q);
    for (int64_t e = 0; e < 2; ++e)
      for (int64_t g = 0; g < 2; ++g)
        o[e].narrow(0, 2 * g, 2)
            .copy_(hand.group(q[e].narrow(0, 2 * g, 2), k[e][g], v[e][g],
                              gates[e].narrow(0, 2 * g, 2)));
    const auto y = at::linear(o.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
    const auto out = layer->forward(x, causal());
    REQUIRE(difference(out.y, y) < 1e-12);
    REQUIRE(difference(out.gates, gates.transpose(1, 2)) < 1e-12);
  }
}

TEST_CASE("nsa with one open branch that sees all is multi-head attention", "[nsa]") {
  const auto mha = make_layer("mha", small_shape(4, 2));
  const auto x = random({2, 13, 20});
  const Rotary rotary;
  auto ctx = causal();
  ctx.rotary = &rotary;
  const std::vector<std::pair<std::string, std::vector<double>>> cases{
      {", block: 4, compress_block: 2, stride: 2, selected: 4", {0, 1, 0}},
      {", block: 16, compress_block: 2, stride: 2, selected: 3", {0, 1, 0}},
      {", block: 4, compress_block: 2, stride: 2, selected: 3, window_tokens: 13", {0, 0, 1}},
      {", block: 1, compress_block: 1, stride: 1, selected: 3", {1, 0, 0}}};
  for (const auto& [options, branches] : cases) {
    INFO(options);
    const auto layer = make_layer("nsa", small_shape(4, 2), options + ", gate_bias: true");
    copy_weights(mha, layer);
    open(layer, branches);
    REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
  }
}

TEST_CASE("separate keys that are equal are shared ones, and what begins as a mean is one",
          "[nsa]") {
  const auto shared = make_layer("nsa", small_shape(4, 2), kEven);
  const auto x = random({2, 15, 20});
  const auto want = shared->forward(x, causal()).y;
  const auto separate = make_layer("nsa", small_shape(4, 2), kEven + ", branch_kv: separate");
  copy_weights(separate, shared);
  for (const char* name : {"k.weight", "v.weight"})
    set(separate, name, parameter(shared, name).repeat({3, 1}));
  REQUIRE(difference(separate->forward(x, causal()).y, want) < 1e-12);
  for (const std::string compress : {"weighted", "linear"}) {
    const auto options = fmt::format("{}, compress: {}", kEven, compress);
    const auto layer = make_layer("nsa", small_shape(4, 2), options);
    const auto begun = fresh("nsa", small_shape(4, 2), options);
    copy_weights(layer, begun);
    copy_weights(layer, shared);
    REQUIRE(difference(layer->forward(x, causal()).y, want) < 1e-7);  // 1 / l in float32
  }
}

TEST_CASE("without rope and norms a bias of keys has no effect in nsa", "[nsa]") {
  const auto layer = make_layer("nsa", small_shape(4, 2), kEven + ", qkv_bias: true");
  const auto x = random({2, 15, 20});
  const auto want = layer->forward(x, causal()).y;
  set(layer, "k.bias", random({12}));
  REQUIRE(difference(layer->forward(x, causal()).y, want) < 1e-11);
}

TEST_CASE("hidden tokens of nsa are as if they were not there", "[nsa]") {
  for (const char* more : {", o_bias: true", ", compress: linear, compress_rope: blocks",
                           ", branch_kv: separate, compress: weighted, compress_rope: blocks",
                           ", compress: mlp, compress_hidden: 3, qk_norm: true"}) {
    INFO(more);
    require_closing_up(make_layer("nsa", small_shape(4, 2), kSmall + more));
    require_closing_up(make_layer("nsa", small_shape(), kEven + more));
  }
}

TEST_CASE("nsa decodes as it reads, however its keys are compressed", "[nsa]") {
  for (const char* more :
       {"", ", compress: linear, compress_rope: blocks, qk_norm: true", ", branch_kv: separate",
        ", branch_kv: separate, compress: weighted, compress_rope: blocks",
        ", compress: mlp, compress_hidden: 3, compress_rope: blocks"}) {
    INFO(more);
    require_decoding(make_layer("nsa", small_shape(4, 2), kSmall + more));
    require_decoding(make_layer("nsa", small_shape(), kEven + more));
  }
}

TEST_CASE("nsa keeps keys, values and compressed ones, and of the rest what is still seen",
          "[nsa]") {
  at::NoGradGuard no_grad;
  const auto bytes = [](const std::string& options) {
    const auto layer = make_layer("nsa", small_shape(4, 2), options);
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    layer->forward(random({1, 20, 20}), ctx);
    layer->forward(random({1, 1, 20}), ctx);
    return cache.bytes() / 8 / 12;  // in tokens of 2 heads of 6
  };
  REQUIRE(bytes(kEven) == 2 * 21 + 2 * 9);
  REQUIRE(bytes(kEven + ", branch_kv: separate") == 2 * 21 + 2 * 9 + 2 * 5 + 2 * 4);
  // A mask of keys that comes late asks for what is gone.
  const auto layer = make_layer("nsa", small_shape(4, 2), kEven + ", branch_kv: separate");
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  for (const int64_t tokens : {11, 1}) layer->forward(random({1, tokens, 20}), ctx);
  ctx.mask.allowed = at::arange(13).view({1, 1, 1, 13}) != 3;
  REQUIRE_THROWS_WITH(layer->forward(random({1, 1, 20}), ctx),
                      Catch::Contains("from the first pass with the cache on"));
}

TEST_CASE("the kernels of nsa agree with the map of all pairs", "[nsa]") {
  const auto x = random({2, 150, 20});
  for (const char* options :
       {", block: 16, compress_block: 8, stride: 4, selected: 5, window_tokens: 20",
        ", block: 8, compress_block: 8, stride: 8, selected: 4, window_tokens: 7, compress: mlp"}) {
    INFO(options);
    require_kernels(make_layer("nsa", small_shape(4, 2), options), x, 1e-10);
  }
}

TEST_CASE("a masked head of nsa leaves the choice of its group, as a sliced one; a gate does not",
          "[nsa]") {
  const auto layer = make_layer("nsa", small_shape(4, 2), kEven);
  REQUIRE_FALSE(layer->traits().independent);
  REQUIRE(make_layer("nsa", small_shape(), kEven)->traits().independent);
  const auto x = random({2, 24, 20});
  const auto whole = chosen_by(layer, x, causal());
  auto gated = causal();
  gated.gates = at::tensor({0., 1., 1., 1.}, at::kDouble).view({1, 4, 1});
  REQUIRE(at::equal(chosen_by(layer, x, gated), whole));
  for (const auto& gone : std::vector<std::vector<int64_t>>{{0}, {0, 3}, {2, 3}}) {
    layer->mask_heads(gone);
    const auto sliced = layer->slice();
    REQUIRE(difference(sliced->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-12);
    REQUIRE(difference(sliced->forward(x, causal()).gates, layer->forward(x, causal()).gates) <
            1e-12);
    if (gone.size() == 1) REQUIRE_FALSE(at::equal(chosen_by(layer, x, causal()), whole));
  }
}

}  // namespace headlab::test_nsa
