// Heads that keep a state by the delta rule: holes, decoding, uniform heads, slices, dropout,
// memory, half types.
#include "experiments/benchmarks/allocations.h"
#include "tests/delta_testing.h"

namespace headlab::test_delta_rule {
using namespace testing;

namespace {

const std::vector<std::string> kKinds{"gated_deltanet", "kda"};
const char* const kOdd = ", qk_heads: 2, value_dim: 5, conv: 3, conv_bias: true, neg_eigval: true";
const std::vector<std::string> kAllOptions{"", kOdd, ", conv: 0, gate: none",
                                           ", conv: 1, qk_heads: 1"};

// Of each kind with each of `options`.
void for_layers(const std::vector<std::string>& options,
                const std::function<void(const Layer&)>& law) {
  for (const auto& kind : kKinds)
    for (const auto& given : options) {
      INFO(kind << given);
      law(make_layer(kind, small_shape(), given));
    }
}

// Chunk by chunk with a cache: [B,T,D].
Tensor decoded(const Layer& layer, const Tensor& x, const std::vector<int64_t>& chunks,
               HeadContext ctx) {
  LayerCache cache;
  ctx.cache = &cache;
  std::vector<Tensor> parts;
  const auto allowed = ctx.mask.allowed;
  for (int64_t chunk : chunks) {
    const int64_t at = cache.length();
    if (allowed.defined()) ctx.mask.allowed = allowed.narrow(3, 0, at + chunk);
    parts.push_back(layer->forward(x.narrow(1, at, chunk), ctx).y);
  }
  return at::cat(parts, 1);
}

}  // namespace

TEST_CASE("hidden tokens are taken out and the rest closes up", "[delta_rule]") {
  for_layers(kAllOptions, [](const Layer& layer) {
    const auto x = random({kBatch, 90, 20});
    auto ctx = causal();
    ctx.mask.allowed = at::rand({kBatch, 1, 1, 90}) < 0.7;  // holes
    ctx.mask.allowed[0].narrow(2, 0, 5).fill_(false);
    for (const auto backend : {Backend::kAuto, Backend::kEager}) {
      ctx.backend = backend;
      const auto seen = run(layer, x, ctx);
      for (int64_t b = 0; b < kBatch; ++b) {
        const auto there = ctx.mask.allowed[b].flatten().nonzero().flatten();
        const auto alone = run(layer, x[b].index_select(0, there).unsqueeze(0), causal());
        REQUIRE(relative_difference(seen.y[b].index_select(0, there), alone.y[0]) < 1e-12);
        const auto map = seen.map[b].index_select(1, there).index_select(2, there);
        REQUIRE(relative_difference(map, alone.map[0]) < 1e-12);
        const auto hidden = ctx.mask.allowed[b].logical_not().flatten();
        REQUIRE(seen.y[b].index({hidden}).abs().max().item<double>() == 0);
        REQUIRE(seen.map[b]
                    .masked_select(hidden.view({1, -1, 1}) | hidden)
                    .abs()
                    .max()
                    .item<double>() == 0);
      }
    }
  });
}

TEST_CASE("no gradient passes a hidden token, and none is NaN", "[delta_rule]") {
  for_layers({kOdd}, [](const Layer& layer) {
    auto ctx = causal();
    ctx.mask.allowed = (at::arange(9) != 4).view({1, 1, 1, 9}).repeat({kBatch, 1, 1, 1});
    ctx.mask.allowed[1].fill_(false);  // an example without any token
    const auto x = random({kBatch, 9, 20}).requires_grad_();
    const auto y = layer->forward(x, ctx).y;
    const auto gradients = gradients_of(layer, x, y);
    for (const auto& g : gradients) REQUIRE(g.isfinite().all().item<bool>());
    REQUIRE(gradients.back()[0][4].abs().max().item<double>() == 0);
    REQUIRE(gradients.back()[1].abs().max().item<double>() == 0);
    REQUIRE(y[1].abs().max().item<double>() == 0);
  });
}

TEST_CASE("chunks of any size equal the parallel pass, with holes of each example",
          "[delta_rule]") {
  at::NoGradGuard no_grad;
  for_layers(kAllOptions, [](const Layer& layer) {
    const auto x = random({kBatch, 160, 20});
    auto ctx = causal();
    for (const bool holes : {false, true}) {
      if (holes) ctx.mask.allowed = at::rand({kBatch, 1, 1, 160}) < 0.6;
      const auto whole = layer->forward(x, ctx).y;
      for (const auto& chunks : std::vector<std::vector<int64_t>>{
               std::vector<int64_t>(160, 1), {1, 2, 63, 94}, {130, 1, 29}, {7, 64, 65, 24}})
        REQUIRE(relative_difference(decoded(layer, x, chunks, ctx), whole) < 1e-12);
    }
  });
}

TEST_CASE("the cache is a state and the last inputs of the convolutions, whatever the length",
          "[delta_rule]") {
  at::NoGradGuard no_grad;
  for_layers({kOdd}, [](const Layer& layer) {
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    for (const int64_t tokens : {1, 1, 70}) {
      layer->forward(random({1, tokens, 20}), ctx);
      const int64_t numbers = kHeads * 6 * 5 + 2 * (2 * 2 * 6 + kHeads * 5);
      REQUIRE(cache.bytes() == numbers * static_cast<int64_t>(sizeof(double)));
    }
  });
}

TEST_CASE("states go on with the examples that a beam keeps", "[delta_rule]") {
  at::NoGradGuard no_grad;
  for_layers({kOdd}, [](const Layer& layer) {
    const auto x = random({3, 9, 20});
    const auto kept = at::tensor({2, 0, 2}, at::kLong);
    auto ctx = causal();
    ctx.uniform = at::arange(kHeads) == 1;
    const auto whole = layer->forward(x.index_select(0, kept), ctx).y;
    LayerCache cache;
    ctx.cache = &cache;
    layer->forward(x.narrow(1, 0, 5), ctx);
    cache.select(kept);
    for (int64_t t = 5; t < 9; ++t)
      REQUIRE(difference(layer->forward(x.index_select(0, kept).narrow(1, t, 1), ctx).y,
                         whole.narrow(1, t, 1)) < 1e-12);
  });
}

TEST_CASE("uniform heads weigh the visible tokens before them alike", "[delta_rule]") {
  for_layers({""}, [](const Layer& layer) {
    const auto x = random({kBatch, 70, 20});
    auto ctx = causal();
    ctx.uniform = at::arange(kHeads) == 2;
    ctx.mask.allowed = at::rand({kBatch, 1, 1, 70}) < 0.6;
    const auto seen = allowed_keys(ctx.mask, 70, 70, at::kCPU) & ctx.mask.allowed.transpose(2, 3);
    const auto weights = seen.to(at::kDouble);
    const auto want = weights / weights.sum(-1, true).clamp_min(1);
    REQUIRE(difference(map_of(*layer, x, ctx).narrow(1, 2, 1), want) < 1e-12);
    const auto y = layer->forward(x, ctx).y;
    REQUIRE(relative_difference(decoded(layer, x, {1, 40, 29}, ctx), y) < 1e-12);
    ctx.backend = Backend::kEager;
    REQUIRE(relative_difference(layer->forward(x, ctx).y, y) < 1e-12);
  });
}

TEST_CASE("sliced equals masked with every option, holes and a cache", "[delta_rule]") {
  at::NoGradGuard no_grad;
  for_layers(kAllOptions, [](const Layer& layer) {
    const auto x = random({kBatch, 20, 20});
    auto ctx = causal();
    ctx.mask.allowed = at::rand({kBatch, 1, 1, 20}) < 0.7;
    ctx.gates = random({kBatch, kHeads, 1});
    for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 1, 2}}) {
      layer->mask_heads(gone);
      const auto want = layer->forward(x, ctx).y;
      REQUIRE(relative_difference(decoded(layer->slice(), x, {5, 1, 14}, ctx), want) < 1e-12);
    }
  });
}

TEST_CASE("dropout falls on the map, as eager drops it", "[delta_rule]") {
  auto shape = small_shape();
  shape.dropout = 0.3;
  for (const auto& kind : kKinds) {
    const auto layer = make_layer(kind, shape);
    layer->train();
    auto ctx = causal();
    ctx.rng = {.seed = 5, .step = 1};
    const auto x = random({kBatch, 70, 20});
    const auto dropped = layer->forward(x, ctx).y;
    ctx.backend = Backend::kEager;
    REQUIRE(difference(layer->forward(x, ctx).y, dropped) == 0);
    layer->eval();
    REQUIRE(difference(layer->forward(x, ctx).y, dropped) > 1e-3);
    layer->train();
    LayerCache cache;
    ctx.cache = &cache;
    REQUIRE_THROWS_WITH(layer->forward(x, ctx), Catch::Contains("decode in eval mode"));
  }
}

TEST_CASE("memory grows with the tokens, not with their square", "[delta_rule]") {
  for_layers({""}, [](const Layer& layer) {
    layer->to(at::kFloat);
    const auto memory = [&](int64_t T) {
      const auto x = at::randn({1, T, 20}).requires_grad_();
      return allocations_of([&] { layer->forward(x, causal()).y.sum().backward(); }).peak;
    };
    REQUIRE(memory(4096) <= 10 * memory(512));
  });
}

TEST_CASE("decays that leave nothing neither overflow nor end in NaN", "[delta_rule]") {
  for_layers({""}, [](const Layer& layer) {
    layer->to(at::kFloat);
    set(layer, "dt_bias", at::full_like(parameter(layer, "dt_bias"), 200));
    const auto x = random({kBatch, 90, 20}).to(at::kFloat).requires_grad_();
    const auto y = layer->forward(x, causal()).y;
    REQUIRE(y.isfinite().all().item<bool>());
    for (const auto& g : gradients_of(layer, x, y)) REQUIRE(g.isfinite().all().item<bool>());
    // Only the own token is left.
    const auto map = map_of(*layer, x.detach(), causal());
    REQUIRE(map.tril(-1).abs().max().item<double>() < 1e-12);
  });
}

TEST_CASE("half types keep the state in float32", "[delta_rule]") {
  at::NoGradGuard no_grad;
  for_layers({kOdd}, [](const Layer& layer) {
    for (auto& p : layer->parameters()) p.copy_(p.to(at::kBFloat16));
    const auto x = random({kBatch, 200, 20}).to(at::kBFloat16);
    const auto want = layer->forward(x.to(at::kDouble), causal()).y;
    layer->to(at::kBFloat16);
    LayerCache cache;
    auto ctx = causal();
    ctx.cache = &cache;
    const auto y = layer->forward(x, ctx).y;
    REQUIRE(y.scalar_type() == at::kBFloat16);
    REQUIRE(cache.state("state").scalar_type() == at::kFloat);
    REQUIRE((y.to(at::kDouble) - want).norm().item<double>() < 0.05 * want.norm().item<double>());
  });
}

}  // namespace headlab::test_delta_rule
