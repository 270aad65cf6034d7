// Linformer: what the compression may and may not change, its options, its cost.
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "experiments/analysis/maps/patterns.h"
#include "experiments/benchmarks/allocations.h"
#include "tests/catch.h"
#include "tests/layers_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_linformer {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7;

HeadContext with_keys(const Tensor& visible) {  // [B,S] bool
  HeadContext ctx;
  ctx.mask.allowed = visible.view({visible.size(0), 1, 1, -1});
  return ctx;
}

HeadContext lengths(int64_t first, int64_t second) {
  HeadContext ctx;
  ctx.mask.key_length = at::tensor({first, second});
  return ctx;
}

std::string complaint_of(const std::string& options, int64_t context = 40) {
  auto shape = small_shape();
  shape.context = context;
  try {
    make_layer("linformer", shape, options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("linformer that compresses nothing is mha", "[linformer]") {
  for (int64_t kv_heads : {4, 2})
    for (const char* bias : {"", ", bias: true"})
      for (bool share : {false, true}) {
        const auto shape = small_shape(4, kv_heads);
        const auto mha = make_layer("mha", shape, bias);
        const auto identity = at::eye(T, at::kDouble);
        const auto linformer = make_layer("linformer", shape,
                                          std::string(", length: 7, projected: 7, share_kv: ") +
                                              (share ? "true" : "false") + bias);
        copy_weights(linformer, mha);
        set(linformer, "e", identity);
        if (!share) set(linformer, "f", identity);
        auto x = random({B, 5, 20}).requires_grad_(), memory = random({B, T, 20}).requires_grad_();
        HeadContext cross;
        cross.memory = memory;
        const auto cotangent = random({B, 5, 20});
        const auto y = mha->forward(x, cross).y, z = linformer->forward(x, cross).y;
        REQUIRE(difference(y, z) < 1e-12);
        const auto want = torch::autograd::grad({(y * cotangent).sum()}, {x, memory});
        const auto got = torch::autograd::grad({(z * cotangent).sum()}, {x, memory});
        REQUIRE(difference(got[0], want[0]) < 1e-12);
        REQUIRE(difference(got[1], want[1]) < 1e-12);
        REQUIRE(difference(mha->forward(memory).y, linformer->forward(memory).y) < 1e-12);
      }
}

TEST_CASE("linformer does not see the order of keys that take their rows of e and f along",
          "[linformer]") {
  const auto layer = make_layer("linformer", small_shape(), ", length: 9, projected: 4");
  const auto order = at::tensor({4, 2, 8, 0, 7, 5, 1, 3, 6});
  HeadContext ctx;
  ctx.memory = random({B, 9, 20});
  const auto x = random({B, T, 20}), y = layer->forward(x, ctx).y;
  ctx.memory = ctx.memory.index_select(1, order);
  REQUIRE(difference(layer->forward(x, ctx).y, y) > 1e-3);
  for (const char* name : {"e", "f"})
    set(layer, name, parameter(layer, name).detach().index_select(0, order));
  REQUIRE(difference(layer->forward(x, ctx).y, y) < 1e-12);
}

TEST_CASE("a sequence shorter than linformer's length is one with zeros behind it", "[linformer]") {
  const auto layer = make_layer("linformer", small_shape(), ", length: 11, projected: 3");
  const auto x = random({B, T, 20}), memory = random({B, 6, 20});
  HeadContext ctx, longer;
  ctx.memory = memory;
  longer.memory = at::constant_pad_nd(memory, {0, 0, 0, 5});
  REQUIRE(difference(layer->forward(x, ctx).y, layer->forward(x, longer).y) < 1e-12);
}

TEST_CASE("linformer with one compression is linformer with two equal ones", "[linformer]") {
  const auto two = make_layer("linformer", small_shape(), ", projected: 5");
  const auto one = make_layer("linformer", small_shape(), ", projected: 5, share_kv: true");
  REQUIRE(one->named_parameters().find("f") == nullptr);
  copy_weights(one, two);
  set(two, "f", parameter(two, "e").detach());
  const auto x = random({B, T, 20});
  REQUIRE(difference(one->forward(x).y, two->forward(x).y) < 1e-12);
}

TEST_CASE("linformer hides tokens from the compression but not from asking", "[linformer]") {
  const auto layer = make_layer("linformer", small_shape(), ", bias: true, projected: 5");
  auto x = random({B, T, 20});
  const auto visible = at::arange(T) < at::tensor({T, int64_t{4}}).unsqueeze(1);
  const auto padded = lengths(T, 4);
  const auto y = layer->forward(x, padded).y;
  REQUIRE(difference(layer->forward(x, with_keys(visible)).y, y) < 1e-12);
  HeadContext by_key;  // [S]: the same tokens in every example
  by_key.mask.allowed = visible[1];
  REQUIRE(difference(layer->forward(x, by_key).y[1], y[1]) < 1e-12);

  x[1].narrow(0, 4, 3).fill_(std::numeric_limits<double>::quiet_NaN());
  const auto other = layer->forward(x, padded).y;
  REQUIRE(difference(other[1].narrow(0, 0, 4), y[1].narrow(0, 0, 4)) < 1e-12);
  x[1].narrow(0, 4, 3).normal_();
  REQUIRE(difference(layer->forward(x, padded).y[1][5], y[1][5]) > 1e-3);
}

TEST_CASE("linformer without any visible token is the output bias and passes no gradient",
          "[linformer]") {
  const auto layer = make_layer("linformer", small_shape(), ", bias: true, projected: 5");
  for (auto backend : {Backend::kAuto, Backend::kEager}) {
    auto ctx = lengths(T, 0);
    ctx.backend = backend;
    auto x = random({B, T, 20}).requires_grad_();
    const auto y = layer->forward(x, ctx).y;
    REQUIRE(difference(y[1], parameter(layer, "o.bias").expand({T, 20})) < 1e-12);
    REQUIRE(difference(y[0][0], y[1][0]) > 1e-3);
    y[1].sum().backward();
    REQUIRE(x.grad().abs().sum().item<double>() == 0);
  }
}

TEST_CASE("linformer refuses sequences and options that do not fit", "[linformer]") {
  const auto layer = make_layer("linformer", small_shape(), ", length: 6, projected: 2");
  REQUIRE_THROWS_WITH(layer->forward(random({B, 7, 20})),
                      Catch::Contains("a sequence of 7 keys is longer than length 6"));
  HeadContext ctx;
  ctx.mask.window = 3;
  REQUIRE_THROWS_WITH(layer->forward(random({B, 5, 20}), ctx), Catch::Contains("no window"));
  REQUIRE_THROWS_WITH(layer->forward(random({B, 5, 20}), causal()), Catch::Contains("causal"));
  ctx = {};
  ctx.mask.allowed = at::ones({5, 5}, at::kBool);
  REQUIRE_THROWS_WITH(layer->forward(random({B, 5, 20}), ctx), Catch::Contains("[B,1,1,S]"));

  REQUIRE_THAT(complaint_of(", length: 8, projected: 9"),
               Catch::Contains("test:1:") &&
                   Catch::Contains("attention.projected: 9 is more than length 8"));
  REQUIRE_THAT(complaint_of(", projected: 41"), Catch::Contains("41 is more than length 40"));
  REQUIRE_THAT(complaint_of(", projected: 0"),
               Catch::Contains("attention.projected: must be at least 1, is 0"));
  REQUIRE_THAT(complaint_of(", length: 0"), Catch::Contains("must be at least 1, is 0"));
  REQUIRE_THAT(complaint_of("", 0), Catch::Contains("write length"));
  REQUIRE(complaint_of(", length: 5", 0).empty());
}

TEST_CASE("linformer in a model compresses the context to a quarter", "[linformer]") {
  const std::string model = "{layers: 1, d_model: 20, heads: 4, causal: false, ";
  const auto decoder = small_decoder(model + "attention: linformer}", 29, 12);
  const auto parameters = decoder->named_parameters();
  REQUIRE(parameters["blocks.0.attention.e"].sizes() == at::IntArrayRef({12, 3}));
  REQUIRE(parameters["blocks.0.attention.f"].sizes() == at::IntArrayRef({12, 3}));
  REQUIRE(logits_of(*decoder, at::randint(29, {2, 12})).isfinite().all().item<bool>());
  REQUIRE_THROWS_WITH(small_decoder(model + "attention: {kind: linformer, projected: 13}}"),
                      Catch::Contains("projected: 13 is more than length 12"));
  REQUIRE_THAT(complaint("{attention: linformer}"), Catch::Contains("cannot be causal"));
  REQUIRE_THAT(complaint("{causal: false, position: rope, attention: linformer}"),
               Catch::Contains("know no rotary positions"));
  REQUIRE_THAT(complaint("{causal: false, window: 4, attention: linformer}"),
               Catch::Contains("know no window"));
}

TEST_CASE("linformer starts with the authors' spread of e and f", "[linformer]") {
  auto shape = small_shape();
  shape.context = 400;
  torch::manual_seed(1);
  const auto layer = fresh("linformer", shape, "");
  const double bound = std::sqrt(6. / (400 + 100)) / std::sqrt(2.);
  for (const char* name : {"e", "f"}) {
    const auto largest = parameter(layer, name).abs().max().item<double>();
    REQUIRE(largest <= bound * (1 + 1e-6));
    REQUIRE(largest > 0.99 * bound);
  }
}

TEST_CASE("sliced linformer equals masked with every combination of options", "[linformer]") {
  const auto x = random({B, T, 20});
  for (int64_t kv_heads : {4, 2})
    for (const char* share : {"", ", share_kv: true"})
      for (const char* bias : {", qkv_bias: true", ", o_bias: true"}) {
        const auto layer = make_layer("linformer", small_shape(4, kv_heads),
                                      std::string(", projected: 5") + share + bias);
        auto ctx = lengths(T, 4);
        ctx.gates = random({B, 4, T});
        for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 1}, {0, 2, 3}}) {
          layer->mask_heads(gone);
          const auto sliced = layer->slice();
          REQUIRE(difference(sliced->forward(x, ctx).y, layer->forward(x, ctx).y) < 1e-12);
          set(sliced, "e", at::zeros({40, 5}, at::kDouble));  // it is a copy
          REQUIRE(parameter(layer, "e").abs().max().item<double>() > 0);
        }
      }
}

TEST_CASE("statistics of linformer are over its rows, not over tokens", "[linformer]") {
  const auto layer = make_layer("linformer", small_shape(4, 2), ", projected: 5");
  auto ctx = lengths(T, 4);
  ctx.mask.query_length = ctx.mask.key_length;
  HeadProbe probe;
  probe.statistics = probe.maps = probe.matches = true;
  probe.js_stride = 1;
  probe.tokens = at::randint(9, {B, T});
  probe.classes = at::randint(4, {B, T}).to(at::kByte);
  ctx.observer = &probe;
  layer->forward(random({B, T, 20}), ctx);
  REQUIRE(probe.classes.defined());
  const auto map = probe.layer_maps().at(1);
  REQUIRE(map.sizes() == at::IntArrayRef({B, 4, T, 5}));
  MapContext context;
  context.cross = true;
  context.query_length = ctx.mask.query_length;
  HeadSums sums(4);
  add_patterns(sums, map, context);
  auto want = head_values(sums), got = probe.values(1);
  for (const char* name : {"entropy", "entropy_normalized", "max_weight", "participation_ratio"})
    for (int64_t h = 0; h < 4; ++h) REQUIRE(got[name][h] == Approx(want[name][h]).epsilon(1e-10));
  for (int64_t pair = 0; pair < 16; ++pair)
    REQUIRE(got["js"][pair] == Approx(want["js"][pair]).epsilon(1e-9).margin(1e-12));
  for (const char* name : {"value_weighted_norm", "output_norm"})
    for (double value : got[name]) REQUIRE(value > 0);
  for (const char* name :
       {"mean_distance", "prev_token", "first_token", "self_token", "sink_rate", "positional_share",
        "cls_mass", "sep_mass", "punctuation_mass", "induction", "duplicate_token"})
    for (double value : got[name]) {
      INFO(name);
      REQUIRE(std::isnan(value));
    }
}

TEST_CASE("linformer's operations grow with the keys, not with their pairs", "[linformer]") {
  const auto two = make_layer("linformer", small_shape(4, 2), ", projected: 5");
  const double D = 20, width = 24, kv_width = 12, P = 5, q = 30, s = 40;
  const double want = 4 * q * D * width + 4 * s * P * D + 4 * P * D * kv_width + 4 * q * P * width;
  REQUIRE(two->flops(30, 40, 30 * 40) == Approx(want));
  const auto one = make_layer("linformer", small_shape(4, 2), ", projected: 5, share_kv: true");
  REQUIRE(one->flops(30, 40, 30 * 40) == Approx(want - 2 * s * P * D));
}

TEST_CASE("linformer's memory is linear in the sequence, a dense map's is not",
          "[linformer][memory]") {
  const auto growth = [](const std::string& kind, Backend backend) {
    const auto peak = [&](int64_t tokens) {
      auto shape = small_shape();
      shape.context = 1024;
      const auto layer = make_layer(kind, shape, kind == "linformer" ? ", projected: 16" : "");
      layer->train();
      const auto x = random({1, tokens, 20}).requires_grad_();
      HeadContext ctx;
      ctx.backend = backend;
      const auto run = [&] { layer->forward(x, ctx).y.sum().backward(); };
      run();  // gradients of weights stay
      return static_cast<double>(allocations_of(run).peak);
    };
    return peak(1024) / peak(256);
  };
  for (auto backend : {Backend::kAuto, Backend::kEager})
    REQUIRE(growth("linformer", backend) < 4.4);
  REQUIRE(growth("mha", Backend::kEager) > 12);
}

}  // namespace headlab::test_linformer
