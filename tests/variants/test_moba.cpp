// Mixture of block attention: the choice written out, reductions to other kinds, hidden tokens,
// decoding, kernels, statistics and refusals.
#include "core/errors.h"
#include "tests/choice_testing.h"

namespace headlab::test_moba {
using namespace testing;

namespace {

const std::string kSmall = ", block: 3, selected: 3";

Tensor heads_of(const Layer& layer, const Tensor& x, const char* name, int64_t H) {
  return split_heads(at::linear(x, parameter(layer, name)), H);
}

// By the formula, query by query: [B,H,T,N].
Tensor chosen_by_hand(const Tensor& q, const Tensor& k, int64_t b, int64_t n) {
  const int64_t T = q.size(2), N = (T + b - 1) / b;
  auto chosen = at::zeros({q.size(0), q.size(1), T, N}, at::kByte);
  for (int64_t e = 0; e < q.size(0); ++e)
    for (int64_t h = 0; h < q.size(1); ++h)
      for (int64_t i = 0; i < T; ++i) {
        std::vector<std::pair<double, int64_t>> scores;
        for (int64_t j = 0; j < i / b; ++j) {
          const auto mean = k[e][h].narrow(0, j * b, b).mean(0);
          scores.emplace_back(-(q[e][h][i] * mean).sum().item<double>(), j);
        }
        std::sort(scores.begin(), scores.end());
        auto row = chosen[e][h][i];
        row[i / b] = 1;
        for (int64_t s = 0; s < std::min<int64_t>(n - 1, std::ssize(scores)); ++s)
          row[scores[s].second] = 1;
      }
  return chosen;
}

}  // namespace

TEST_CASE("moba is the softmax over the own block and those whose means a query meets best",
          "[moba]") {
  const auto layer = make_layer("moba", small_shape(4, 2), kSmall);
  const auto x = random({2, 20, 20});
  const auto q = heads_of(layer, x, "q.weight", 4);
  const auto k = heads_of(layer, x, "k.weight", 2).repeat_interleave(2, 1);
  const auto v = heads_of(layer, x, "v.weight", 2).repeat_interleave(2, 1);
  const auto chosen = chosen_by_hand(q, k, 3, 3);
  REQUIRE(at::equal(chosen_by(layer, x, causal()), chosen));
  const auto tokens = chosen.repeat_interleave(3, 3).narrow(3, 0, 20) *
                      at::ones({20, 20}, at::kByte).tril();  // [B,H,T,T]
  const auto z = at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.);
  const auto a = at::softmax(z.masked_fill(tokens == 0, kHiddenScore), -1);
  const auto y =
      at::linear(at::matmul(a, v).transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
  const auto seen = run(layer, x, causal());
  REQUIRE(difference(seen.map, a) < 1e-12);
  REQUIRE(difference(seen.y, y) < 1e-12);
}

TEST_CASE("moba that may choose all blocks, or has one, is multi-head attention", "[moba]") {
  const auto mha = make_layer("mha", small_shape(4, 2), ", bias: true");
  const auto x = random({2, 13, 20});
  const Rotary rotary;
  const Alibi alibi(4, at::kDouble);
  auto ctx = causal();
  ctx.rotary = &rotary;
  ctx.position_bias = &alibi;
  for (const char* all : {", block: 4, selected: 4", ", block: 13, selected: 1", ""}) {
    const auto layer = make_layer("moba", small_shape(4, 2), std::string(", bias: true") + all);
    copy_weights(mha, layer);
    REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
  }
}

TEST_CASE("moba that sees its own block alone is bigbird without other blocks", "[moba]") {
  const auto layer = make_layer("moba", small_shape(), ", block: 4, selected: 1");
  const auto bigbird = make_layer(
      "bigbird", small_shape(), ", block: 4, global_blocks: 0, window_blocks: 1, random_blocks: 0");
  copy_weights(bigbird, layer);
  const auto x = random({2, 18, 20});
  REQUIRE(difference(layer->forward(x, causal()).y, bigbird->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("moba with blocks of one token sees its own key and those of the highest scores",
          "[moba]") {
  const auto layer = make_layer("moba", small_shape(), ", block: 1, selected: 4");
  const auto x = random({2, 12, 20});
  const auto z = at::matmul(heads_of(layer, x, "q.weight", 4),
                            heads_of(layer, x, "k.weight", 4).transpose(2, 3));
  const auto chosen = chosen_by(layer, x, causal());
  for (int64_t i = 0; i < 12; ++i) {
    auto row = z.select(2, i).narrow(2, 0, i + 1).clone();
    row.select(2, i).fill_(1e9);
    const auto best = std::get<1>(row.topk(std::min<int64_t>(4, i + 1), 2));
    const auto want = at::zeros({2, 4, 12}, at::kByte).scatter_(2, best, 1);
    REQUIRE(at::equal(chosen.select(2, i), want));
  }
}

TEST_CASE("moba chooses without scale and biases, and of equal blocks the lower", "[moba]") {
  const auto layer = make_layer("moba", small_shape(), kSmall),
             scaled = make_layer("moba", small_shape(), kSmall + ", scale: 0.03");
  const auto x = random({2, 17, 20});
  const auto chosen = chosen_by(layer, x, causal());
  REQUIRE(at::equal(chosen_by(scaled, x, causal()), chosen));
  auto biased = causal();
  biased.bias = 5 * random({1, 4, 17, 17});
  REQUIRE(at::equal(chosen_by(layer, x, biased), chosen));
  set(scaled, "q.weight", 3 * parameter(layer, "q.weight"));
  REQUIRE(at::equal(chosen_by(scaled, x, causal()), chosen));
  set(layer, "q.weight", at::zeros({24, 20}));
  const auto ties = chosen_by(layer, x, causal());
  for (int64_t i = 0; i < 17; ++i)
    for (int64_t j = 0; j < 6; ++j) {
      const bool want = j == i / 3 || (j < i / 3 && j < 2);
      REQUIRE((ties.select(2, i).select(2, j) == (want ? 1 : 0)).all().item<bool>());
    }
}

TEST_CASE("hidden tokens of moba are as if they were not there", "[moba]") {
  for (const int64_t kv_heads : {4, 2})
    require_closing_up(make_layer("moba", small_shape(4, kv_heads), kSmall + ", bias: true"));
  require_closing_up(make_layer("moba", small_shape(), ", block: 20, bias: true"));
  const auto layer = make_layer("moba", small_shape(), kSmall);
  auto ctx = causal();
  ctx.mask.allowed = holes();
  const auto chosen = chosen_by(layer, random({3, 13, 20}), ctx);
  const auto hidden = ctx.mask.allowed.logical_not().view({3, 1, 13, 1});
  REQUIRE((chosen * hidden).sum().item<int64_t>() == 0);
}

TEST_CASE("moba decodes as it reads, and keeps a mean for each complete block", "[moba]") {
  require_decoding(make_layer("moba", small_shape(4, 2), kSmall + ", qk_norm: true"));
  require_decoding(make_layer("moba", small_shape(4, 2), ", block: 1, selected: 5"));
  const auto layer = make_layer("moba", small_shape(4, 2), kSmall);
  at::NoGradGuard no_grad;
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  layer->forward(random({2, 14, 20}), ctx);
  REQUIRE(cache.entries("means") == 4);
  REQUIRE(cache.bytes() == (2 * 14 + 4) * 2 * 2 * 6 * 8);
}

TEST_CASE("the kernels of moba agree with the map of all pairs", "[moba]") {
  for (const char* options :
       {", block: 16, selected: 3", ", block: 5, selected: 7", ", block: 1"}) {
    INFO(options);
    const auto layer = make_layer("moba", small_shape(4, 2), options);
    require_kernels(layer, random({2, 150, 20}), 1e-11);
  }
  auto wide = small_shape(2, 1);
  wide.head_dim = 37;
  const auto layer = make_layer("moba", wide, kSmall);
  require_kernels(layer, random({1, 40, 20}), 1e-11);
  layer->to(at::kFloat);
  at::NoGradGuard no_grad;
  for (auto& p : layer->parameters()) p.mul_(0.3);
  at::AutoGradMode grad(true);
  require_kernels(layer, random({1, 40, 20}).to(at::kFloat), 1e-5);
}

TEST_CASE("a sliced moba layer is a masked one, and its choice is that of the heads left",
          "[moba]") {
  const auto layer = make_layer("moba", small_shape(4, 2), kSmall);
  const auto x = random({2, 16, 20});
  const auto whole = chosen_by(layer, x, causal());
  layer->mask_heads({0, 3});
  const auto sliced = layer->slice();
  REQUIRE(difference(sliced->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-12);
  REQUIRE(at::equal(chosen_by(sliced, x, causal()), whole.narrow(1, 1, 2)));
}

TEST_CASE("the statistics of moba's choice", "[moba]") {
  const auto layer = make_layer("moba", small_shape(), ", block: 4, selected: 2");
  const auto x = random({2, 15, 20});
  const auto seen = run(layer, x, causal());
  const auto chosen = chosen_by(layer, x, causal());
  const auto dense = at::softmax(
      (at::matmul(heads_of(layer, x, "q.weight", 4),
                  heads_of(layer, x, "k.weight", 4).transpose(2, 3)) /
       std::sqrt(6.))
          .masked_fill(at::ones({15, 15}, at::kBool).tril().logical_not(), kHiddenScore),
      -1);
  for (int64_t h = 0; h < 4; ++h) {
    double own = 0, mass = 0, distance = 0, recall = 0, common = 0;
    for (int64_t e = 0; e < 2; ++e)
      for (int64_t i = 0; i < 15; ++i) {
        own += seen.map[e][h][i].slice(0, i / 4 * 4, i + 1).sum().item<double>();
        for (int64_t j = 0; j <= i / 4; ++j) {
          const bool is_chosen = chosen[e][h][i][j].item<int64_t>() == 1;
          if (!is_chosen) continue;
          recall += dense[e][h][i].slice(0, j * 4, j * 4 + 4).sum().item<double>();
          if (i < 8 || j == i / 4) continue;  // i / 4 candidates for one slot
          mass += seen.map[e][h][i].slice(0, j * 4, j * 4 + 4).sum().item<double>();
          const int64_t apart = i / 4 - j;
          distance += static_cast<double>(apart);
          common += chosen[e][0][i][j].item<double>();
        }
      }
    INFO("head " << h);
    const auto& got = seen.statistics;
    REQUIRE(got.at("own_block")[h] == Approx(own / 30));
    REQUIRE(got.at("chosen_mass")[h] == Approx(mass / 14));
    REQUIRE(got.at("chosen_distance")[h] == Approx(distance / 14));
    REQUIRE(got.at("choice_recall")[h] == Approx(recall / 30));
    REQUIRE(got.at("choice_overlap")[h * 4] == Approx(common / 14));
  }
}

TEST_CASE("moba refuses what its blocks cannot do", "[moba]") {
  require_refused("moba", "", {.bidirectional = true}, "'moba' heads must be causal");
  require_refused("moba", "", {.causal = true, .window = true}, "'moba' heads know no window");
  require_refused("moba", "", {.cross = true}, "cross");
  REQUIRE_THROWS_AS(make_layer("moba", small_shape(), ", block: 0"), ConfigError);
  REQUIRE_THROWS_AS(make_layer("moba", small_shape(), ", selected: 0"), ConfigError);
  const auto layer = make_layer("moba", small_shape(), kSmall);
  auto ctx = causal();
  ctx.mask.allowed = at::ones({2, 1, 7, 7}, at::kBool);
  REQUIRE_THROWS_WITH(layer->forward(random({2, 7, 20}), ctx),
                      Catch::Contains("hides keys from all queries alike"));
}

}  // namespace headlab::test_moba
