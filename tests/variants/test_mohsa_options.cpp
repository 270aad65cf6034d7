// Overlapped heads with every option: rotated, decoding, in half precision, talking, losing heads.
#include "core/attention/weight_dropout.h"
#include "tests/catch.h"
#include "tests/layers_testing.h"

namespace headlab::test_mohsa_options {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7, D = 20, H = 4, d = 6;

Layer mohsa(const std::string& options = "") { return make_layer("mohsa", small_shape(), options); }

const std::vector<std::string> kOptions{
    ", overlap: 0",
    ", overlap: 2, qkv_bias: true",
    ", overlap: 8, o_bias: false",  // reaches beyond the neighbour
    ", overlap: 2, pre: true",
    ", overlap: 1, qkv_bias: true, post: true",
    ", overlap: 7, pre: true, post: true, o_bias: false",
};

}  // namespace

TEST_CASE("mohsa: the cache holds un-overlapped keys and values", "[mohsa]") {
  const auto layer = mohsa(", overlap: 2");
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  at::NoGradGuard no_grad;
  layer->forward(random({B, T, D}), ctx);
  // Nothing that is added: what is kept of the T tokens, H*d + 2o numbers each.
  for (const char* name : {"k", "v"})
    REQUIRE(cache.append(name, at::zeros({B, 1, 0, H * d + 4}, at::kDouble)).sizes() ==
            at::IntArrayRef({B, 1, T, H * d + 4}));
}

TEST_CASE("mohsa: a slice keeps the features of its heads' original neighbours", "[mohsa]") {
  const auto layer = mohsa(", overlap: 2");
  layer->mask_heads({1, 3});
  const auto sliced = layer->slice();
  // Head 0 reads features -2 .. 7, head 2 features 10 .. 19: rows 0 .. 7 and 10 .. 19 are left.
  const auto window = sliced->named_buffers()["window"];
  const auto tens = at::arange(10);
  REQUIRE(at::equal(window[0], at::where(tens < 2, -1, tens - 2)));
  REQUIRE(at::equal(window[1], tens + 8));
  const auto rows = at::cat({at::arange(8), at::arange(10, 20)});
  for (const char* name : {"q.weight", "k.weight", "v.weight"})
    REQUIRE(at::equal(parameter(sliced, name), parameter(layer, name).index_select(0, rows)));
  REQUIRE(parameter(sliced, "o.weight").sizes() == at::IntArrayRef({D, 20}));
  sliced->to(at::kBFloat16);
  REQUIRE(sliced->named_buffers()["window"].scalar_type() == at::kLong);
}

TEST_CASE("mohsa: what was sliced twice loads into what is sliced once", "[mohsa]") {
  for (const auto& options : kOptions) {
    INFO(options);
    auto trained = mohsa(options);
    for (int64_t head : {3, 1}) {
      trained->mask_heads({head});
      trained = trained->slice();
    }
    auto loaded = make_layer("mohsa", small_shape(), options, /*seed=*/9);
    loaded->mask_heads({1, 3});
    loaded = loaded->slice();
    auto load = [](const auto& from, const auto& to) {
      REQUIRE(from.keys() == to.keys());
      at::NoGradGuard no_grad;
      for (const auto& item : from) {
        INFO(item.key());
        REQUIRE(to[item.key()].sizes() == item.value().sizes());
        Tensor(to[item.key()]).copy_(item.value());
      }
    };
    REQUIRE(at::equal(loaded->named_buffers()["window"], trained->named_buffers()["window"]));
    load(trained->named_parameters(), loaded->named_parameters());
    load(trained->named_buffers(), loaded->named_buffers());
    const auto x = random({B, T, D});
    REQUIRE(difference(loaded->forward(x, causal()).y, trained->forward(x, causal()).y) == 0);
  }
}

TEST_CASE("mohsa: a slice trains as the masked layer", "[mohsa]") {
  for (const char* options : {", overlap: 2", ", overlap: 8, pre: true, post: true"}) {
    const auto layer = mohsa(options);
    layer->mask_heads({1});
    const auto sliced = layer->slice();
    const auto x = random({B, T, D}), cotangent = random({B, T, D});
    for (const auto& of : {layer, sliced})
      (of->forward(x, causal()).y * cotangent).sum().backward();
    const auto window = sliced->named_buffers()["window"];
    const int64_t features = parameter(sliced, "q.weight").size(0);
    REQUIRE(window.max().item<int64_t>() == features - 1);
    for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
      INFO(options << " " << name);
      const auto whole = parameter(layer, name).grad();
      const auto left = whole.abs().amax(1).gt(0).nonzero().flatten();  // rows that are read
      REQUIRE(left.size(0) == features);
      REQUIRE(difference(whole.index_select(0, left), parameter(sliced, name).grad()) < 1e-10);
    }
    REQUIRE(difference(parameter(layer, "o.bias").grad(), parameter(sliced, "o.bias").grad()) <
            1e-12);
  }
}

TEST_CASE("mohsa: talking heads that say nothing new change nothing", "[mohsa]") {
  const auto silent = mohsa(", overlap: 2"), talking = mohsa(", overlap: 2, pre: true, post: true");
  copy_weights(talking, silent);
  for (const char* name : {"pre", "post"}) set(talking, name, at::eye(H, at::kDouble));
  const auto x = random({B, T, D});
  auto ctx = causal();
  ctx.bias = random({1, H, T, T});
  const auto expected = run(silent, x, ctx), got = run(talking, x, ctx);
  REQUIRE(difference(expected.y, got.y) < 1e-12);
  REQUIRE(difference(expected.map, got.map) < 1e-13);
  set(talking, "pre", random({H, H}));
  REQUIRE(difference(expected.map, run(talking, x, ctx).map) > 1e-3);
}

TEST_CASE("mohsa: talking heads mix before biases and after dropout", "[mohsa]") {
  auto shape = small_shape();
  shape.dropout = 0.3;
  const auto layer = make_layer("mohsa", shape, ", overlap: 2, pre: true, post: true");
  const auto x = random({B, T, D});
  const Alibi alibi(H, at::kDouble);
  auto ctx = causal();
  ctx.bias = random({1, H, T, T});
  ctx.position_bias = &alibi;
  ctx.rng = {.seed = 5, .step = 3};
  layer->train();
  const auto seen = run(layer, x, ctx);
  auto windows = [&](const char* name) {
    const auto t = at::linear(x, parameter(layer, name));
    return at::constant_pad_nd(t, {2, 2}).unfold(2, d + 4, d).transpose(1, 2);
  };
  const auto z =
      at::matmul(windows("q.weight"), windows("k.weight").transpose(2, 3)) / std::sqrt(6.);
  auto mix = [&](const Tensor& t, const char* name) {
    return at::einsum("bhij,hg->bgij", {t, parameter(layer, name)});
  };
  const auto allowed = allowed_keys(ctx.mask, T, T, at::kCPU);
  const auto p = masked_softmax(add_biases(mix(z, "pre"), HeadCall::from_context(ctx)), allowed);
  REQUIRE(difference(seen.map, mix(p, "post")) < 1e-12);
  ctx.rng.layer = shape.layer;
  const auto a = mix(dropout(p, weight_dropout(0.3, ctx.rng)), "post");
  const auto joined = at::matmul(a, windows("v.weight")).transpose(1, 2).flatten(2);
  const auto y = at::linear(joined, parameter(layer, "o.weight"), parameter(layer, "o.bias"));
  REQUIRE(difference(seen.y, y) < 1e-12);
}

TEST_CASE("mohsa: talking heads do not hear the masked ones", "[mohsa]") {
  const auto layer = mohsa(", overlap: 2, pre: true, post: true");
  REQUIRE_FALSE(layer->traits().independent);
  REQUIRE_FALSE(layer->traits().rows_sum_to_one);
  REQUIRE(mohsa(", pre: true")->traits().rows_sum_to_one);
  REQUIRE(mohsa()->traits().independent);
  const auto x = random({B, T, D});
  HeadContext gated = causal();
  gated.gates = at::tensor({1., 0., 1., 1.}, at::kDouble).view({1, H, 1});
  const auto silenced = layer->forward(x, gated).y;
  layer->mask_heads({1});
  const auto absent = layer->forward(x, causal()).y;
  REQUIRE(difference(silenced, absent) > 1e-3);
  // As if the rows and columns of the matrices had never been there.
  for (const char* name : {"pre", "post"}) {
    auto mixing = parameter(layer, name).detach().clone();
    mixing[1].fill_(0);
    set(layer, name, mixing);
  }
  layer->mask_heads({});
  REQUIRE(difference(layer->forward(x, gated).y, absent) < 1e-12);
}

TEST_CASE("mohsa: statistics of talking heads are of the weights before they are mixed",
          "[mohsa]") {
  const auto quiet = mohsa(", overlap: 2"), talking = mohsa(", overlap: 2, post: true");
  copy_weights(quiet, talking);
  const auto x = random({B, T, D});
  const auto before = run(quiet, x, causal()), mixed = run(talking, x, causal());
  REQUIRE(talking->own_statistics().size() == 3);
  const auto sum = mixed.map.sum(-1).mean(at::IntArrayRef({0, 2}));
  const auto first = mixed.map.select(3, 0).mean(at::IntArrayRef({0, 2}));
  const auto negative = (-mixed.map.clamp_max(0)).sum(-1).mean(at::IntArrayRef({0, 2}));
  for (int64_t h = 0; h < H; ++h) {
    const auto& got = mixed.statistics;
    REQUIRE(got.at("entropy")[h] == Approx(before.statistics.at("entropy")[h]));
    REQUIRE(got.at("composed_row_sum")[h] == Approx(sum[h].item<double>()));
    REQUIRE(got.at("composed_first_token")[h] == Approx(first[h].item<double>()));
    REQUIRE(got.at("composed_negative_mass")[h] == Approx(negative[h].item<double>()));
  }
}

TEST_CASE("mohsa: logits depend on the distance between rotated tokens alone", "[mohsa]") {
  const Rotary rotary(100);
  const auto x = random({B, T, D});
  for (const auto& options : kOptions) {
    INFO(options);
    const auto layer = mohsa(options);
    auto at_place = [&](int64_t first) {
      auto ctx = causal();
      ctx.rotary = &rotary;
      ctx.positions = at::arange(first, first + T);
      return layer->forward(x, ctx).y;
    };
    REQUIRE(difference(at_place(0), at_place(50)) < 1e-11);
    REQUIRE(difference(at_place(0), layer->forward(x, causal()).y) > 1e-3);
  }
}

TEST_CASE("mohsa: learned gates by element are as wide as a window", "[mohsa]") {
  const auto gated = make_layer("gated", small_shape(),
                                ", inner: {kind: mohsa, overlap: 2}, gate: sigmoid, "
                                "granularity: element");
  REQUIRE(parameter(gated, "gate.weight").sizes() == at::IntArrayRef({H * (d + 4), D}));
  const auto x = random({B, T, D});
  gated->mask_heads({1});
  const auto sliced = gated->slice();
  REQUIRE(difference(sliced->forward(x, causal()).y, gated->forward(x, causal()).y) < 1e-12);
  sliced->mask_heads({2});
  gated->mask_heads({1, 2});
  REQUIRE(difference(sliced->slice()->forward(x, causal()).y, gated->forward(x, causal()).y) <
          1e-12);
}

}  // namespace headlab::test_mohsa_options
