// What the laws beside this file ask of every kind by its defaults, asked of its other options:
// slices, caches, masks, gradients and half types.
#include <array>

#include "tests/laws_testing.h"
#include "tests/layers_testing.h"

namespace headlab::test_option_laws {
using namespace testing;

namespace {

struct Options {
  std::vector<std::string> of_kind;  // each begins with a comma
  std::string all = "";              // what is turned on beside them
  int64_t kv_heads = 4;
};

Options options_of(const std::string& kind) {
  const std::string rich = ", bias: true, qk_norm: true";
  if (kind == "bigbird")  // so small that most of a row lies outside of its blocks
    return {{", block: 3, global_blocks: 1, window_blocks: 1, random_blocks: 1, seed: 5",
             ", block: 4, seed: 11", ", block: 2, global_blocks: 0, window_blocks: 3, scale: 0.9"},
            rich,
            2};
  if (kind == "collaborative")
    return {{", content_bias: false, v_bias: false, o_bias: false",
             ", shared_dim: 10, scale: shared, v_bias: false",
             ", shared_dim: 30, scale: 0.3, o_bias: false"}};
  if (kind == "dcmha")
    return {{", static: true, qk_norm: true, bias: true", ", pre: false",
             ", post: false, static: true", ", query_wise: false", ", key_wise: false, rank: 3",
             ", query_wise: false, key_wise: false, static: true",
             ", gelu: erf, hidden: 5, qk_norm: true, qk_norm_kind: layer"}};
  if (kind == "differential")
    return {{"", ", norm: false", ", norm_affine: false, lambda_init: 0.3", ", version: 2",
             ", version: 2, scale: 0.2"},
            ", bias: true",
            2};
  if (kind == "dsa")
    return {
        {", selected: 3, index_heads: 2, index_dim: 3", ", selected: 2, index_loss: 0"}, rich, 2};
  if (kind == "entmax")
    return {{"", ", alpha: 1", ", alpha: 1.2", ", alpha: 2", ", learn_alpha: true"}, rich, 2};
  if (kind == "forgetting")
    return {
        {", output_gate: sigmoid, output_norm: true, qk_norm: per_head, k_shift: true, "
         "v_shift: true",
         ", forget: bias_only, qk_norm: shared, k_shift: true",
         ", forget: fixed, time_min: 2, time_max: 30, output_gate: silu, v_shift: true",
         ", output_norm: true, norm_eps: 0.1, scale: 0.2"}};
  if (kind == "gla")
    return {{", rope_dim: 4", ", rope_dim: 0, q_rank: 0", ", groups: 1, q_rank: 9", ", groups: 4",
             ", nope_dim: 5, rope_dim: 4, kv_rank: 7, value_dim: 3, scale: 0.3"},
            ", bias: true"};
  if (kind == "gta")
    return {{"", ", rope_dim: 0", ", rope_dim: 6, scale: 0.2", ", rope_dim: 4, k_rope_bias: false"},
            ", bias: true",
            2};
  if (kind == "mla")
    return {{", rope_dim: 4", ", rope_dim: 0", ", q_rank: 9, rope_dim: 2",
             ", nope_dim: 5, rope_dim: 4, kv_rank: 7, value_dim: 3, scale: 0.3"},
            ", bias: true"};
  if (kind == "moh")
    return {{", shared: 1, active: 2, qkv_bias: true, o_bias: true", ", shared: 0, active: 1",
             ", shared: 1, active: 2, gates: paper", ", shared: 2, active: 1, two_stage: false",
             ", shared: 1, active: 2, compute: sparse", ", shared: 4, active: 0",
             ", shared: 1, active: 2, router: query_norm",
             ", shared: 1, active: 2, router: query_norm, straight_through: selected"},
            "",
            2};
  if (kind == "mohsa")
    return {{", overlap: 0", ", overlap: 2, qkv_bias: true", ", overlap: 8, o_bias: false",
             ", overlap: 2, pre: true", ", overlap: 1, qkv_bias: true, post: true",
             ", overlap: 7, pre: true, post: true, o_bias: false"}};
  if (kind == "mta")
    return {{"", ", pre_kernel: [3, 5]", ", post_kernel: [3, 5], scale: 0.2",
             ", pre_kernel: [2, 4], pad_key: left, pre: true", ", pre: true, post: 4", ", post: 1",
             ", pre_kernel: [1, 2], post_kernel: [3, 4], pad_key: right, post: 2",
             ", gate: element, norm: true, lambda_init: 0.3, pre_kernel: [9, 1]"},
            ", bias: true",
            2};
  if (kind == "reattention")
    return {{"", ", theta_bias: true", ", transform_scale: true, scale: 0.2", ", norm: batch",
             ", norm: batch, theta_bias: true, transform_scale: true"},
            rich,
            2};
  if (kind == "sigmoid")
    return {{", offset: -1.9", ", offset: 0.5, normalize: sqrt",
             ", offset: -1.9, normalize: length, qk_norm_kind: rms"},
            rich,
            2};
  if (kind == "sink") return {{"", ", sink: 0", ", sink: -3.5"}, rich, 2};
  if (kind == "softpick") return {{"", ", eps: 0.1"}, rich, 2};
  if (kind == "stickbreaking")
    return {{"", ", attend_current: true", ", remainder: bias, norm: true",
             ", remainder: bias, attend_current: true", ", remainder: none, attend_current: true"},
            rich,
            2};
  if (kind == "switchhead")
    return {{", experts: 1", ", experts: 3, active: 3", ", experts: 5, active: 1, scale: 0.2",
             ", expert_dropout: 0.5"}};
  if (kind == "tempered") return {{", start: 2", ", strength: false"}, rich, 2};  // an example
  if (kind == "talking")
    return {{"", ", mix_bias: true", ", pre: false", ", pre: false, mix_bias: true",
             ", post: false", ", post: false, mix_bias: true", ", pre: false, post: false"},
            rich,
            2};
  if (kind == "tpa")
    return {{"", ", q_rank: 0", ", q_rank: 1, k_rank: 1, v_rank: 1", ", q_rank: 3, v_rank: 4",
             ", q_rank: 1, norm: true, norm_eps: 0.1, scale: 0.2"}};
  return {};
}

template <class Law>
void for_all_options(Law law) {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      const auto options = options_of(kind);
      if (options.of_kind.empty()) not_promised();
      for (const auto& given : options.of_kind) {
        INFO(kind << given);
        law(*make_layer(kind, small_shape(4, options.kv_heads), given + options.all), kind + given);
      }
    }
}

}  // namespace

TEST_CASE("with every option sliced equals masked, and what is gone gets no gradient", "[laws]") {
  const Rotary rotary;
  for_all_options([&](AttentionHeads& heads, const std::string&) {
    const auto x = random({B, T, 20});
    auto ctx = masked_context();
    ctx.gates = random({B, 4, T});
    for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 1, 2}}) {
      INFO("removed heads " << at::IntArrayRef(gone));
      heads.mask_heads(gone);
      const auto masked = heads.forward(x, ctx);
      const auto sliced = heads.slice();
      const auto small = sliced->forward(x, ctx);
      REQUIRE(relative_difference(small.y, masked.y) < 1e-12);
      REQUIRE(small.gates.defined() == masked.gates.defined());
      if (small.gates.defined()) REQUIRE(difference(small.gates, masked.gates) < 1e-12);
      REQUIRE(sliced->slice()->alive() == heads.alive());
      heads.zero_grad();
      (masked.y * random(masked.y.sizes())).sum().backward();
      // Where queries are a head's own.
      const auto whole = heads.named_parameters(), kept = sliced->named_parameters();
      const auto *q = whole.find("q.weight"), *left = kept.find("q.weight");
      const auto count = 4 - std::ssize(gone);
      if (!q || left->size(0) * 4 != q->size(0) * count) continue;
      const auto gradient = q->grad().view({4, -1});
      for (int64_t h : gone) REQUIRE(gradient[h].abs().max().item<double>() == 0);
    }
    ctx.rotary = &rotary;
    heads.mask_heads({0, 1, 2, 3});
    REQUIRE(difference(heads.slice()->forward(x, ctx).y, heads.forward(x, ctx).y) < 1e-12);
  });
}

TEST_CASE("with every option decoding equals the parallel pass, also of what is sliced", "[laws]") {
  at::NoGradGuard no_grad;
  const Rotary rotary;
  const Alibi alibi(4, at::kDouble);
  for_all_options([&](AttentionHeads& whole_heads, const std::string&) {
    whole_heads.mask_heads({0, 2});
    const auto sliced = whole_heads.slice();
    whole_heads.mask_heads({});
    const auto x = random({B, 20, 20});
    for (const int64_t window : {0, 3}) {
      auto& heads = window > 0 ? *sliced : whole_heads;
      auto ctx = causal(window);
      ctx.rotary = &rotary;
      ctx.position_bias = &alibi;
      const auto whole = heads.forward(x, ctx);
      LayerCache cache;
      ctx.cache = &cache;
      int64_t at = 0;
      for (int64_t chunk : std::array<int64_t, 5>{5, 1, 12, 1, 1}) {
        INFO("window " << window << ", places " << at << " to " << at + chunk - 1);
        const auto out = heads.forward(x.narrow(1, at, chunk), ctx);
        REQUIRE(relative_difference(out.y, whole.y.narrow(1, at, chunk)) < 1e-12);
        if (out.gates.defined())
          REQUIRE(difference(out.gates, whole.gates.narrow(1, at, chunk)) < 1e-12);
        at += chunk;
      }
    }
  });
}

TEST_CASE("with every option masked keys have no weight, and the future and padding no say",
          "[laws]") {
  for_all_options([](AttentionHeads& heads, const std::string& what) {
    auto x = random({B, T, 20}).requires_grad_();
    const auto ctx = masked_context();
    const auto map = map_of(heads, x, ctx);
    const auto allowed = allowed_keys(ctx.mask, T, T, at::kCPU);
    REQUIRE(map.masked_select(allowed.logical_not()).abs().max().item<double>() == 0);
    const auto y = heads.forward(x, ctx).y;
    const auto parameters = heads.named_parameters();
    const auto* o_bias = parameters.find("o.bias");
    const auto bias = o_bias ? *o_bias : at::zeros({20}, at::kDouble);
    REQUIRE(difference(y.select(1, 4), bias.expand({B, 20})) < 1e-12);
    y.select(1, 4).sum().backward();
    REQUIRE(x.grad().abs().sum().item<double>() == 0);
    const auto before = heads.forward(x, causal()).y;
    auto other = x.detach().clone();
    other.narrow(1, 5, 2).normal_();
    const auto after = heads.forward(other, causal()).y;
    REQUIRE(relative_difference(before.narrow(1, 0, 5), after.narrow(1, 0, 5)) < 1e-12);
    REQUIRE(difference(before.narrow(1, 5, 2), after.narrow(1, 5, 2)) > 1e-6);
    const auto widest = heads.traits().bidirectional ? HeadContext{} : causal();
    auto padded = widest;
    padded.mask.key_length = padded.mask.query_length = at::full({B}, 5, at::kLong);
    const auto y_padded = heads.forward(x, padded).y.narrow(1, 0, 5);
    // The blocks of bigbird are counted from the end, too.
    const auto same = what.starts_with("bigbird") ? heads.forward(other, padded).y.narrow(1, 0, 5)
                                                  : heads.forward(x.narrow(1, 0, 5), widest).y;
    REQUIRE(relative_difference(y_padded, same) < 1e-12);
  });
}

TEST_CASE("with every option gradients agree with central differences", "[laws]") {
  for_all_options([](AttentionHeads& heads, const std::string& what) {
    // Straight through a choice, on purpose.
    if (what.find("query_norm") == std::string::npos) require_gradients(heads);
  });
}

TEST_CASE("with every option half types stay half and near the numbers of float64", "[laws]") {
  at::NoGradGuard no_grad;
  for_all_options([](AttentionHeads& heads, const std::string&) {
    for (auto& p : heads.parameters()) p.copy_(p.to(at::kBFloat16));
    const auto x = random({B, T, 20}).to(at::kBFloat16);
    const auto exact = heads.forward(x.to(at::kDouble), causal()).y;
    heads.to(at::kBFloat16);
    const auto half = heads.forward(x, causal()).y;
    REQUIRE(half.scalar_type() == at::kBFloat16);
    REQUIRE(difference(half.to(at::kDouble), exact) < 0.1 * exact.abs().max().item<double>());
  });
}

}  // namespace headlab::test_option_laws
