// What core promises the author of a kind: where heads lie is said once, and slicing, grouping and
// initialisation follow from it; draws and caches keep apart what is not the same.
#include <cmath>
#include <set>

#include "core/config/registry.h"
#include "core/projected_heads.h"
#include "tests/layers_testing.h"

namespace headlab::test_contract {
using namespace testing;

namespace {

// Registers one parameter behind the contract's back.
class Forgetful : public AttentionHeads {
 public:
  using Options = HeadOptions;
  Forgetful(const HeadShape& shape, const Options& options)
      : AttentionHeads(shape, options.traits()) {
    output_projection(shape.heads * shape.head_dim, false);
    register_parameter("tau", at::ones({shape.heads}));
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall&) override { return {.y = x}; }
};

// Two maps a head, a norm for each of them, and values of another width than keys: the difference
// of two attentions.
struct TwoMapOptions : BiasOptions {
  Projections projections() const override {
    auto p = BiasOptions::projections();
    p.maps = 2, p.qk_width = 4, p.v_width = 10;
    p.qk_norm = p.norm_per_head = true;
    return p;
  }
};
class TwoMaps : public ProjectedHeads<TwoMapOptions> {
 public:
  TwoMaps(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    share_ = parameter("share", at::rand({3, shape.heads, 2}), {{.dim = 1}});
    pairs_ = parameter("pairs", at::rand({2 * shape.heads}), {{.dim = 0, .repeat = 2}});
  }
  Tensor share_, pairs_;

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const int64_t B = x.size(0), T = x.size(1), H = shape_.heads;
    const auto q = queries(x, call).view({B, H, 2, T, 4});
    const auto of_kv = [&](const Tensor& kv) { return repeat_kv(kv, call.kv_map, H); };
    const auto k = keys(x, call);  // [B,2 Hkv,S,d]
    const auto pairs = k.view({B, k.size(1) / 2, 2, k.size(2), 4});
    const auto v = of_kv(values(x, call));  // [B,H,S,e]
    const auto map = [&](int64_t m) {
      const auto allowed = allowed_keys(call.mask, T, k.size(2), x.device());
      const auto z =
          at::matmul(q.select(2, m) * scale(), of_kv(pairs.select(2, m)).transpose(2, 3));
      return at::matmul(masked_softmax(z, allowed), v);
    };
    const auto weight = pairs_.view({2, H, 1, 1});
    return {.y =
                output(map(0) * weight[0] -
                           map(1) * weight[1] * share_.sum(at::IntArrayRef({0, 2})).view({H, 1, 1}),
                       call)};
  }
};

}  // namespace

TEST_CASE("a parameter registered without saying where its heads lie is an error that names it") {
  REQUIRE_THROWS_WITH(build_heads<Forgetful>(small_shape(), {}),
                      Catch::Contains("'tau' was registered without saying where its heads lie"));
}

TEST_CASE("an error of torch is told by its cause, without the frames behind it") {
  REQUIRE_THROWS_WITH([] { TORCH_CHECK(false, "the cause"); }(), "the cause");
}

TEST_CASE("wider projections slice, group and decode by what they say of themselves") {
  torch::manual_seed(3);
  for (const int64_t kv_heads : {4, 2}) {
    const auto layer = build_heads<TwoMaps>(small_shape(4, kv_heads), {});
    layer->to(at::kDouble);
    layer->eval();
    at::NoGradGuard no_grad;
    for (auto& p : layer->parameters()) p.normal_(0, 0.5);
    const auto weights = layer->named_parameters();
    REQUIRE(weights["q.weight"].sizes() == at::IntArrayRef({4 * 2 * 4, 20}));
    REQUIRE(weights["k.weight"].sizes() == at::IntArrayRef({kv_heads * 2 * 4, 20}));
    REQUIRE(weights["v.weight"].sizes() == at::IntArrayRef({kv_heads * 10, 20}));
    REQUIRE(weights["o.weight"].sizes() == at::IntArrayRef({20, 4 * 10}));
    REQUIRE(weights["k_norm.weight"].sizes() == at::IntArrayRef({kv_heads * 2, 4}));
    const auto x = random({2, 7, 20});
    for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 1, 2, 3}}) {
      layer->mask_heads(gone);
      const auto sliced = layer->slice();
      REQUIRE(difference(sliced->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-12);
      REQUIRE(sliced->named_parameters()["share"].size(1) == 4 - std::ssize(gone));
      REQUIRE(sliced->named_parameters()["pairs"].size(0) == 2 * (4 - std::ssize(gone)));
    }
    layer->mask_heads({});
    const auto whole = layer->forward(x, causal()).y;
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    for (int64_t t = 0; t < 7; ++t)
      REQUIRE(difference(layer->forward(x.narrow(1, t, 1), ctx).y[0][0], whole[0][t]) < 1e-12);
  }
}

TEST_CASE("FLOPs are those that the kind says, and none where it says nothing") {
  CHECK(std::isnan(Forgetful(small_shape(), {}).flops(7, 7, 28)));
  CHECK(std::isnan(build_heads<TwoMaps>(small_shape(), {})->flops(7, 7, 28)));  // beside q k v o
  for (const auto& kind : head_names()) {
    INFO(kind);
    CHECK(make_layer(kind, small_shape())->flops(7, 7, 28) > 0);
  }
}

TEST_CASE("projections start as the host asks") {
  auto shape = small_shape();
  shape.d_model = 400, shape.head_dim = 100, shape.layers = 8;
  const auto layer = [&](Init init) {
    torch::manual_seed(1);
    shape.init = init;
    return build_heads<TwoMaps>(shape, {})->named_parameters();
  };
  const auto std_of = [](const Tensor& t) { return t.std().item<double>(); };
  const auto gpt2 = layer(Init::kGpt2), plain = layer(Init::kPlain), xavier = layer(Init::kXavier);
  REQUIRE(std_of(gpt2["q.weight"]) == Approx(0.02).epsilon(0.05));
  REQUIRE(std_of(gpt2["o.weight"]) == Approx(0.02 / 4).epsilon(0.05));
  REQUIRE(std_of(plain["v.weight"]) == Approx(0.02).epsilon(0.05));
  REQUIRE(std_of(plain["o.weight"]) == Approx(0.02).epsilon(0.05));
  const auto& q = xavier["q.weight"];
  const double bound = std::sqrt(3.0 / static_cast<double>(q.size(0) + q.size(1)));
  REQUIRE(q.abs().max().item<double>() <= bound);
  REQUIRE(q.abs().max().item<double>() > 0.99 * bound);
  const auto& o = xavier["o.weight"];
  REQUIRE(o.abs().max().item<double>() <= 1 / std::sqrt(static_cast<double>(o.size(1))));
}

TEST_CASE("the attentions of one model draw apart, that of a decoder alone as ever") {
  const auto bits = [](const char* site) {
    const CounterRng rng{.seed = 7, .step = 3, .site = CounterRng::site_key(site), .layer = 2};
    return rng.bits(CounterRng::kAttentionDropout, 1);
  };
  // seed, step, layer, stream and index through splitmix64, one after the other
  uint64_t h = mix_bits(7);
  for (const uint64_t word : {3, 2, 1, 1}) h = mix_bits(h ^ word);
  REQUIRE(bits("self") == h);
  const std::set<uint64_t> all{bits("self"), bits("encoder_self"), bits("decoder_self"),
                               bits("cross")};
  REQUIRE(all.size() == 4);

  auto shape = small_shape();
  shape.dropout = 0.5;
  const auto x = random({2, 7, 20});
  const auto y = [&](const char* site) {
    shape.site = site;
    const auto layer = make_layer("mha", shape);
    layer->train();
    return layer->forward(x, causal()).y;
  };
  REQUIRE(difference(y("self"), y("self")) == 0);
  REQUIRE(difference(y("encoder_self"), y("decoder_self")) > 1e-3);
}

TEST_CASE("a cache refuses an entry that a pass did not append to") {
  LayerCache cache;
  cache.append("k", random({1, 2, 3, 4}));
  cache.append("v", random({1, 2, 3, 4}));
  cache.advance(3);
  cache.append("k", random({1, 2, 1, 4}));
  REQUIRE_THROWS_WITH(cache.advance(1), Catch::Contains("'v' holds 3 places of 4"));
  LayerCache fresh;
  REQUIRE_FALSE(fresh.state("sum").defined());
  fresh.state("sum") = random({2});
  REQUIRE(fresh.state("sum").defined());
  fresh.clear();
  REQUIRE_FALSE(fresh.state("sum").defined());
}

TEST_CASE("a cache holds entries that are fewer than places, and refuses another number of them") {
  LayerCache cache;
  const CacheRate pairs{.each = 2},
      overlapping{.each = 2, .before = 3};  // of 5 places, each second
  REQUIRE(overlapping.entries(4) == 0);
  REQUIRE(overlapping.entries(5) == 1);
  REQUIRE(overlapping.entries(8) == 2);
  const auto add = [&](const char* name, int64_t n, CacheRate rate) {
    return cache.append(name, random({1, 2, n, 4}), /*keep=*/0, rate).size(2);
  };
  REQUIRE(add("k", 5, {}) == 5);
  REQUIRE(add("pairs", 2, pairs) == 2);
  REQUIRE(add("overlapping", 1, overlapping) == 1);
  cache.advance(5);
  add("k", 1, {});
  REQUIRE(add("pairs", 1, pairs) == 3);
  REQUIRE(cache.entries("pairs") == 3);
  cache.advance(1);  // nothing is due of the overlapping ones
  add("k", 1, {});
  add("pairs", 1, pairs);
  add("overlapping", 1, overlapping);
  REQUIRE_THROWS_WITH(cache.advance(1), Catch::Contains("'pairs' holds 4 entries of 3"));
}

TEST_CASE("what a pass completes is made once, whatever the passes") {
  auto ctx = causal();
  LayerCache cache;
  ctx.cache = &cache;
  const auto tokens = random({2, 3, 17, 4});
  const auto of_pass = [&](int64_t T) {
    ctx.positions = at::arange(cache.length(), cache.length() + T);
    const auto all = cached_at_rate(
        HeadCall::from_context(ctx), "means", {.each = 3}, [&](int64_t first, int64_t count) {
          return tokens.narrow(2, 3 * first, 3 * count).unflatten(2, {count, 3}).mean(3);
        });
    cache.advance(T);
    return all;
  };
  for (const int64_t T : {2, 5, 1, 1, 8}) {
    const auto all = of_pass(T);
    const int64_t n = cache.length() / 3;
    REQUIRE(difference(all, tokens.narrow(2, 0, 3 * n).unflatten(2, {n, 3}).mean(3)) < 1e-15);
  }
  ctx.cache = nullptr;
  ctx.positions = at::arange(17);
  int64_t made = 0;
  cached_at_rate(HeadCall::from_context(ctx), "means", {.each = 3},
                 [&](int64_t first, int64_t count) { return made = first + count, tokens; });
  REQUIRE(made == 5);
}

TEST_CASE("what is cached may be kept longer than the window") {
  LayerCache cache;
  auto ctx = causal(/*window=*/2);
  ctx.cache = &cache;
  const auto call = HeadCall::from_context(ctx);
  const auto three = [] { return random({1, 1, 3, 2}); };
  cached(call, "k", three), cached(call, "all", three, /*keep=*/0);
  cache.advance(3);
  REQUIRE(cached(call, "k", three).size(2) == 4);
  REQUIRE(cached(call, "all", three, /*keep=*/0).size(2) == 6);
}

TEST_CASE("a name registered twice is reported with both files, and the first stays") {
  struct Kind {
    std::string name;
    std::function<std::shared_ptr<Block>()> options;
    int number;
  };
  auto& conflicts = registration_conflicts();
  REQUIRE(conflicts.empty());
  Registry<Kind> registry("kind of number");
  const auto options = [] { return std::shared_ptr<Block>(); };
  registry.add({"one", options, 1});
  registry.add({"one", options, 2});
  REQUIRE(conflicts.size() == 1);
  const auto conflict = conflicts.at(0);
  conflicts.clear();
  CHECK_THAT(conflict, Catch::Contains("kind of number 'one' is registered by two files"));
  CHECK_THAT(conflict, Catch::Contains("test_contract.cpp"));
  REQUIRE(registry.at("one").number == 1);
}

}  // namespace headlab::test_contract
