// BigBird: the pattern against the recipe written down plainly, tiles against the dense map.
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "experiments/analysis/patterns.h"
#include "tests/catch.h"
#include "tests/layers_testing.h"
#include "tests/peak_memory.h"

namespace headlab::test_bigbird {
using namespace testing;

namespace {

struct Blocks {
  int64_t block, global, window, random;
  uint64_t seed = 0;

  std::string options() const {
    return fmt::format(
        ", block: {}, global_blocks: {}, window_blocks: {}, random_blocks: {}, seed: {}", block,
        global, window, random, seed);
  }
};

// The blocks that block i of n sees in head h, as the recipe says it, all candidates listed.
std::set<int64_t> seen_blocks(const Blocks& o, uint64_t h, uint64_t i, int64_t n, bool causal) {
  const int64_t front = causal ? o.global : (o.global + 1) / 2, back = causal ? 0 : o.global / 2;
  const auto is_global = [&](int64_t j) { return j < front || j >= n - back; };
  const int64_t row = static_cast<int64_t>(i);
  std::set<int64_t> seen;
  std::vector<int64_t> candidates;
  for (int64_t j = 0; j < n; ++j) {
    if (is_global(row) || is_global(j) || std::abs(row - j) <= (o.window - 1) / 2)
      seen.insert(j);
    else if (!causal || j < row)
      candidates.push_back(j);
  }
  uint64_t state = o.seed ^ (h * 0x9E3779B97F4A7C15ull) ^ (i * 0xBF58476D1CE4E5B9ull);
  for (size_t t = 0; t < std::min<size_t>(o.random, candidates.size()); ++t) {
    state += 0x9E3779B97F4A7C15ull;
    uint64_t u = state;
    u = (u ^ (u >> 30)) * 0xBF58476D1CE4E5B9ull;
    u = (u ^ (u >> 27)) * 0x94D049BB133111EBull;
    u ^= u >> 31;
    std::swap(candidates[t], candidates[t + u % (candidates.size() - t)]);
    seen.insert(candidates[t]);
  }
  return seen;
}

// bool [H,T,T]
Tensor pattern(const Blocks& o, int64_t heads, int64_t T, bool causal) {
  const int64_t n = (T + o.block - 1) / o.block;
  auto allowed = at::zeros({heads, T, T}, at::kBool);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j : seen_blocks(o, h, i, n, causal))
        allowed[h]
            .slice(0, i * o.block, std::min(T, (i + 1) * o.block))
            .slice(1, j * o.block, std::min(T, (j + 1) * o.block))
            .fill_(true);
  return causal ? allowed.tril() : allowed;
}

// The blocks of one token that head h sees from row i beyond globals and window.
std::set<int64_t> drawn(const Tensor& map, int64_t h, int64_t i, const std::set<int64_t>& fixed) {
  std::set<int64_t> blocks;
  for (int64_t j = 0; j < map.size(3); ++j)
    if (map[0][h][i][j].item<double>() > 0 && !fixed.count(j)) blocks.insert(j);
  return blocks;
}

struct Result {
  Tensor y;
  std::vector<Tensor> gradients;
};

// Outputs, and gradients of all parameters, x and `more`.
Result differentiate(AttentionHeads& layer, const Tensor& x, HeadContext ctx, Backend backend,
                     std::vector<Tensor> more = {}) {
  ctx.backend = backend;
  auto wanted = layer.parameters();
  wanted.push_back(x);
  wanted.insert(wanted.end(), more.begin(), more.end());
  const auto y = layer.forward(x, ctx).y;
  torch::manual_seed(3);
  return {y, torch::autograd::grad({(y * random(y.sizes())).sum()}, wanted)};
}

void require_same(const Result& got, const Result& want) {
  REQUIRE(difference(got.y, want.y) < 1e-12);
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (size_t n = 0; n < want.gradients.size(); ++n)
    REQUIRE(difference(got.gradients[n], want.gradients[n]) < 1e-11);
}

// The layer's tiles against its dense map.
void require_tiles_equal_map(AttentionHeads& layer, const Tensor& x, const HeadContext& ctx,
                             const std::vector<Tensor>& more = {}) {
  require_same(differentiate(layer, x, ctx, Backend::kAuto, more),
               differentiate(layer, x, ctx, Backend::kEager, more));
}

// So small that most of a row of 29 tokens lies outside.
const Blocks kSmall{3, 1, 1, 1, 5};

std::string complaint_of(const std::string& options) {
  try {
    make_layer("bigbird", small_shape(), options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("bigbird draws the blocks of the recipe's examples", "[bigbird]") {
  REQUIRE(mix_bits(0) == 0xe220a8397b1dcdafull);
  REQUIRE(mix_bits(0x9E3779B97F4A7C15ull) == 0x6e789e6aa1b965f4ull);
  REQUIRE(mix_bits(2 * 0x9E3779B97F4A7C15ull) == 0x06c45d188009454full);

  using Set = std::set<int64_t>;
  const auto layer = make_layer("bigbird", small_shape(), Blocks{1, 2, 3, 2, 7}.options());
  const auto map = run(layer, random({1, 14, 20})).map;
  REQUIRE(drawn(map, 0, 1, {0, 13, 1, 2}) == Set{7, 5});
  REQUIRE(drawn(map, 0, 2, {0, 13, 1, 2, 3}) == Set{6, 5});
  REQUIRE(drawn(map, 0, 7, {0, 13, 6, 7, 8}) == Set{5, 1});
  REQUIRE(drawn(map, 1, 1, {0, 13, 1, 2}) == Set{8, 10});
  REQUIRE(drawn(map, 1, 2, {0, 13, 1, 2, 3}) == Set{10, 8});
  REQUIRE(drawn(map, 1, 7, {0, 13, 6, 7, 8}) == Set{1, 11});
  for (int64_t i : {0, 13}) REQUIRE(drawn(map, 0, i, {}).size() == 14);

  const auto later = make_layer("bigbird", small_shape(), Blocks{1, 1, 3, 2, 42}.options());
  const auto causal_map = run(later, random({1, 9, 20}), causal()).map;
  REQUIRE(drawn(causal_map, 0, 3, {0, 2, 3}) == Set{1});
  REQUIRE(drawn(causal_map, 0, 4, {0, 3, 4}) == Set{2, 1});
  REQUIRE(drawn(causal_map, 0, 5, {0, 4, 5}) == Set{3, 1});
  REQUIRE(drawn(causal_map, 0, 8, {0, 7, 8}) == Set{1, 5});
}

TEST_CASE("bigbird is mha with the recipe's mask, by tiles and by the dense map", "[bigbird]") {
  for (const Blocks& o : std::vector<Blocks>{{2, 2, 3, 2, 7},
                                             {3, 1, 1, 1, 5},
                                             {3, 0, 3, 2, 1},
                                             {4, 3, 1, 0, 0},
                                             {1, 2, 5, 3, 18446744073709551615ull},
                                             {2, 5, 1, 4, 9},
                                             {5, 2, 3, 1, 3}})
    for (bool is_causal : {false, true})
      for (int64_t T : {1, 2, 13, 29, 36}) {
        INFO(o.options() << " T " << T << (is_causal ? " causal" : ""));
        const auto layer = make_layer("bigbird", small_shape(), o.options());
        const auto mha = make_layer("mha", small_shape());
        auto x = random({2, T, 20}).requires_grad_();
        const auto ctx = is_causal ? causal() : HeadContext{};
        auto masked = ctx;
        masked.mask.allowed = pattern(o, 4, T, is_causal);
        const auto want = differentiate(*mha, x, masked, Backend::kEager);
        require_same(differentiate(*layer, x, ctx, Backend::kAuto), want);
        require_same(differentiate(*layer, x, ctx, Backend::kEager), want);
      }
}

TEST_CASE("bigbird that sees every block is mha", "[bigbird]") {
  for (const char* options :
       {", block: 0", ", block: 3, random_blocks: 99", ", block: 3, window_blocks: 99",
        ", block: 3, global_blocks: 99", ", block: 99, random_blocks: 0, global_blocks: 0"})
    for (bool is_causal : {false, true}) {
      const auto layer = make_layer("bigbird", small_shape(4, 2), options);
      const auto mha = make_layer("mha", small_shape(4, 2));
      const auto x = random({2, 17, 20});
      const auto ctx = is_causal ? causal() : HeadContext{};
      REQUIRE(difference(layer->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
    }
}

TEST_CASE("bigbird's tiles are the dense map under every mask", "[bigbird]") {
  const int64_t T = 29;
  for (const auto& o : {kSmall, Blocks{3, 3, 1, 1, 2}, Blocks{2, 0, 3, 1, 8}})
    for (bool is_causal : {false, true})
      for (int64_t window : {0, 8}) {
        INFO(o.options() << " window " << window << (is_causal ? " causal" : ""));
        const auto layer = make_layer("bigbird", small_shape(4, 2), o.options() + ", bias: true");
        auto x = random({2, T, 20}).requires_grad_();
        auto plain = is_causal ? causal(window) : HeadContext{};
        plain.mask.window = window;
        require_tiles_equal_map(*layer, x, plain);
        auto padded = plain;
        padded.mask.key_length = padded.mask.query_length = at::tensor({T, int64_t{10}});
        require_tiles_equal_map(*layer, x, padded);
        for (const auto& sizes : std::vector<std::vector<int64_t>>{{T},
                                                                   {T, T},
                                                                   {T, 1},
                                                                   {4, T, T},
                                                                   {2, 1, 1, T},
                                                                   {2, 4, T, T},
                                                                   {1, 4, 1, T},
                                                                   {2, 1, T, 1}}) {
          auto masked = padded;
          masked.mask.allowed = at::rand(sizes) < 0.6;  // some rows are left without any key
          require_tiles_equal_map(*layer, x, masked);
        }
      }
}

TEST_CASE("bigbird's tiles are the dense map with biases, gates, norms and positions",
          "[bigbird]") {
  const int64_t T = 29;
  const Rotary rotary;
  for (const char* more : {"", ", bias: true, qk_norm: true", ", scale: 0.9"})
    for (bool is_causal : {false, true}) {
      const auto layer = make_layer("bigbird", small_shape(4, 2), kSmall.options() + more);
      auto x = random({2, T, 20}).requires_grad_();
      auto ctx = is_causal ? causal() : HeadContext{};
      ctx.rotary = &rotary;
      ctx.positions = at::arange(T).mul(3).add(2);
      ctx.gates = random({2, 4, T}).requires_grad_();
      require_tiles_equal_map(*layer, x, ctx, {ctx.gates});
      for (const auto& sizes :
           std::vector<std::vector<int64_t>>{{T}, {T, T}, {1, 4, T, T}, {2, 1, 1, T}}) {
        ctx.bias = random(sizes);
        require_tiles_equal_map(*layer, x, ctx);
        ctx.bias.requires_grad_();
        require_tiles_equal_map(*layer, x, ctx, {ctx.bias});
      }
      ctx.bias = random({1, 4, T, T});
      const Alibi alibi(4, at::kDouble);
      ctx.position_bias = &alibi;
      require_tiles_equal_map(*layer, x, ctx);
      const auto weight = random({32, 4}).requires_grad_();
      const RelativeBias relative(weight, 20, is_causal);
      ctx.position_bias = &relative;
      require_tiles_equal_map(*layer, x, ctx, {weight});
    }
}

TEST_CASE("bigbird decodes as it computes at once, window, groups and slices included",
          "[bigbird]") {
  at::NoGradGuard no_grad;
  const int64_t T = 61;
  const Rotary rotary;
  const Alibi alibi(4, at::kDouble);
  for (const auto& o : {kSmall, Blocks{4, 2, 3, 2, 11}, Blocks{64, 2, 3, 3, 0}})
    for (int64_t window : {0, 3, 17})
      for (bool sliced : {false, true}) {
        INFO(o.options() << " window " << window);
        auto layer = make_layer("bigbird", small_shape(4, 2), o.options());
        if (sliced) {
          layer->mask_heads({0, 2});
          layer = layer->slice();
        }
        auto ctx = causal(window);
        ctx.rotary = &rotary;
        ctx.position_bias = &alibi;
        const auto x = random({2, T, 20}), whole = layer->forward(x, ctx).y;
        LayerCache cache;
        ctx.cache = &cache;
        int64_t at = 0;
        for (int64_t chunk : {5, 1, 1, 1, 1, 11, 1, 2, 1, 7, 20, 1, 1, 8}) {
          INFO("places " << at << " to " << at + chunk - 1);
          const auto y = layer->forward(x.narrow(1, at, chunk), ctx).y;
          REQUIRE(difference(y, whole.narrow(1, at, chunk)) < 1e-12);
          at += chunk;
        }
        REQUIRE(at == T);
      }
}

TEST_CASE("sliced bigbird keeps the blocks of its original heads", "[bigbird]") {
  const int64_t T = 29;
  const Alibi alibi(4, at::kDouble);
  for (int64_t kv_heads : {4, 2, 1})
    for (const char* more : {"", ", bias: true, qk_norm: true", ", qkv_bias: true"}) {
      const auto layer = make_layer("bigbird", small_shape(4, kv_heads), kSmall.options() + more);
      const auto x = random({2, T, 20});
      HeadContext ctx;
      ctx.bias = random({1, 4, T, T});
      ctx.mask.allowed = at::rand({2, 4, T, T}) < 0.8;
      ctx.position_bias = &alibi;
      ctx.gates = random({2, 4, T});
      for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {0, 2, 3}}) {
        layer->mask_heads(gone);
        const auto sliced = layer->slice();
        for (auto backend : {Backend::kAuto, Backend::kEager}) {
          ctx.backend = backend;
          REQUIRE(difference(sliced->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
        }
      }
    }
}

TEST_CASE("bigbird inside another kind keeps the blocks of its original heads", "[bigbird]") {
  const auto layer =
      make_layer("gated", small_shape(4, 2), ", inner: {kind: bigbird" + kSmall.options() + "}");
  const auto x = random({2, 29, 20});
  layer->mask_heads({0, 2});
  REQUIRE(difference(layer->slice()->forward(x).y, layer->forward(x).y) < 1e-12);
}

TEST_CASE("bigbird hides the future and rows without keys, by tiles", "[bigbird]") {
  const auto layer = make_layer("bigbird", small_shape(), kSmall.options() + ", o_bias: true");
  const auto x = random({1, 29, 20});
  for (int64_t t : {0, 4, 11, 27}) {
    auto other = x.clone();
    other.narrow(1, t + 1, 28 - t).normal_();
    const auto before = layer->forward(x, causal()).y, after = layer->forward(other, causal()).y;
    REQUIRE(difference(before.narrow(1, 0, t + 1), after.narrow(1, 0, t + 1)) < 1e-12);
    REQUIRE(difference(before.select(1, t + 1), after.select(1, t + 1)) > 1e-6);
  }
  HeadContext ctx;
  ctx.mask.allowed = at::ones({29, 29}, at::kBool);
  for (int64_t dead : {1, 14, 28}) ctx.mask.allowed[dead].fill_(false);
  auto input = x.clone().requires_grad_();
  const auto y = layer->forward(input, ctx).y;
  const auto bias = layer->named_parameters()["o.bias"];
  for (int64_t dead : {1, 14, 28}) REQUIRE(difference(y[0][dead], bias) < 1e-12);
  (y[0][1] + y[0][14] + y[0][28]).sum().backward();
  REQUIRE(input.grad().abs().sum().item<double>() == 0);
}

TEST_CASE("dropout on bigbird's tiles is a function of the counter and keeps the mean",
          "[bigbird]") {
  auto shape = small_shape();
  shape.dropout = 0.4;
  const auto layer = make_layer("bigbird", shape, Blocks{3, 1, 1, 1, 5}.options());
  const auto x = random({1, 29, 20});
  at::NoGradGuard no_grad;
  const auto kept = layer->forward(x).y;
  layer->train();
  const auto at_step = [&](uint64_t step) {
    HeadContext ctx;
    ctx.rng.step = step;
    return layer->forward(x, ctx).y;
  };
  REQUIRE(difference(at_step(1), at_step(1)) == 0);
  REQUIRE(difference(at_step(1), at_step(2)) > 1e-3);
  const int64_t steps = 600;
  auto sum = at::zeros_like(kept), squares = at::zeros_like(kept);
  for (int64_t step = 0; step < steps; ++step) {
    const auto y = at_step(step);
    sum += y;
    squares += y * y;
  }
  const auto mean = sum / steps;
  const auto error = ((squares / steps - mean * mean) / steps).sqrt();
  REQUIRE((mean - kept).abs().div(error).max().item<double>() < 5.5);
}

TEST_CASE("bigbird in bfloat16 computes its softmax in float32", "[bigbird]") {
  const auto layer = make_layer("bigbird", small_shape(), kSmall.options());
  const auto x = random({1, 29, 20});
  const auto want = layer->forward(x).y;
  layer->to(at::kBFloat16);
  const auto y = layer->forward(x.to(at::kBFloat16)).y;
  REQUIRE(y.scalar_type() == at::kBFloat16);
  REQUIRE(difference(y.to(at::kDouble), want) < 0.02 * want.abs().max().item<double>());
}

TEST_CASE("statistics of bigbird are those of its map", "[bigbird]") {
  for (bool is_causal : {false, true}) {
    const auto layer = make_layer("bigbird", small_shape(), kSmall.options());
    const auto x = random({2, 29, 20});
    auto ctx = is_causal ? causal() : HeadContext{};
    const auto silent = layer->forward(x, ctx).y;
    HeadProbe probe;
    probe.statistics = probe.maps = true;
    probe.js_stride = 1;
    ctx.observer = &probe;
    REQUIRE(difference(layer->forward(x, ctx).y, silent) == 0);
    PatternFacts facts;
    facts.causal = is_causal;
    facts.allowed = pattern(kSmall, 4, 29, is_causal);
    HeadSums sums(4);
    add_patterns(sums, probe.layer_maps().at(1), facts);
    auto want = head_values(sums), got = probe.values(1);
    for (const char* name : {"entropy", "entropy_normalized", "max_weight", "mean_distance",
                             "signed_offset", "self_token", "first_token", "participation_ratio"})
      for (int64_t h = 0; h < 4; ++h) {
        INFO(name);
        REQUIRE(got[name][h] == Approx(want[name][h]).epsilon(1e-10));
      }
    for (int64_t pair = 0; pair < 16; ++pair)
      REQUIRE(got["js"][pair] == Approx(want["js"][pair]).epsilon(1e-9).margin(1e-12));
  }
}

TEST_CASE("bigbird refuses what is no pattern and takes every seed of 64 bits", "[bigbird]") {
  REQUIRE_THAT(complaint_of(", window_blocks: 4"),
               Catch::Contains("test:1:") &&
                   Catch::Contains("attention.window_blocks: must be odd") &&
                   Catch::Contains("3 or 5"));
  REQUIRE_THAT(complaint_of(", block: -1"), Catch::Contains("block: must be at least 0, is -1"));
  REQUIRE_THAT(complaint_of(", random_blocks: -1"), Catch::Contains("must be at least 0"));
  REQUIRE_THAT(complaint_of(", seed: -1"), Catch::Contains("seed: must be at least 0, is -1"));
  REQUIRE_THAT(complaint_of(", seed: 18446744073709551616"),
               Catch::Contains("seed: must be an integer of 64 bits"));
  REQUIRE_THAT(complaint_of(", seed: 1.5"), Catch::Contains("seed: must be an integer"));
  REQUIRE_THAT(complaint_of(", seed: \"7\""), Catch::Contains("seed: must be an integer"));
  for (const char* seed :
       {"0", "9223372036854775807", "9223372036854775808", "18446744073709551615"}) {
    REQUIRE(read_kind("bigbird", std::string(", seed: ") + seed).write().find("seed")->text ==
            seed);
  }
  const auto layer = make_layer("bigbird", small_shape());
  HeadContext ctx;
  ctx.memory = random({1, 5, 20});
  REQUIRE_THROWS_WITH(layer->forward(random({1, 7, 20}), ctx),
                      Catch::Contains("no cross-attention"));
}

TEST_CASE("bigbird's operations follow its pattern", "[bigbird]") {
  const auto flops = [](const std::string& kind, const std::string& options, int64_t T) {
    return make_layer(kind, small_shape(), options)->flops(T, T, static_cast<double>(T * T));
  };
  const Blocks o{8, 2, 3, 3, 0};
  const double T = 1000, projections = 8 * T * 20 * 24;
  REQUIRE(flops("bigbird", o.options(), 1000) ==
          Approx(projections + 4 * T * 8 * 8 * 24 + 4 * 2 * 8 * T * 24));
  REQUIRE(flops("bigbird", o.options(), 60) == flops("mha", "", 60));
  REQUIRE(flops("bigbird", ", block: 0", 1000) == flops("mha", "", 1000));
}

TEST_CASE("bigbird's memory is linear in the sequence, a dense map's is not", "[bigbird][memory]") {
  const auto growth = [](const Blocks& o, bool is_causal, double dropout, Backend backend) {
    const auto peak = [&](int64_t tokens) {
      auto shape = small_shape();
      shape.dropout = dropout;
      const auto layer = make_layer("bigbird", shape, o.options());
      layer->train();
      const auto x = random({1, tokens, 20}).requires_grad_();
      auto ctx = is_causal ? causal() : HeadContext{};
      ctx.backend = backend;
      const auto run = [&] { layer->forward(x, ctx).y.sum().backward(); };
      run();  // gradients of weights stay
      return static_cast<double>(memory_of(run).peak);
    };
    return peak(2048) / peak(512);
  };
  const Blocks o{8, 2, 3, 3, 0};
  for (bool is_causal : {false, true})
    for (double dropout : {0., 0.1}) REQUIRE(growth(o, is_causal, dropout, Backend::kAuto) < 4.4);
  REQUIRE(growth(o, false, 0, Backend::kEager) > 12);
}

}  // namespace headlab::test_bigbird
