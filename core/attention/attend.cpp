#include "core/attention/attend.h"

#include <algorithm>

#include "core/heads.h"
#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {

const Tensor& source(const Tensor& x, const HeadContext& ctx) {
  return ctx.memory.defined() ? ctx.memory : x;
}

Tensor key_positions(const HeadContext& ctx) {
  if (!ctx.memory.defined()) return ctx.positions;
  return at::arange(ctx.memory.size(1), ctx.positions.options());
}

Tensor split_heads(const Tensor& x, int64_t heads) {
  const int64_t d = heads > 0 ? x.size(2) / heads : 0;
  return x.view({x.size(0), x.size(1), heads, d}).transpose(1, 2);  // [B,H,T,d]
}

Tensor rotate(const Tensor& x, const HeadContext& ctx, const Tensor& positions) {
  return ctx.rotary ? ctx.rotary->rotate(x, positions) : x;
}

Tensor remembered(const HeadContext& ctx, const std::string& name,
                  const std::function<Tensor()>& compute) {
  if (!ctx.cache) return compute();
  if (ctx.memory.defined()) return ctx.cache->once(name, compute);
  return ctx.cache->append(name, compute(), ctx.mask.window);
}

Tensor repeat_kv(const Tensor& kv, const HeadContext& ctx, int64_t heads) {
  if (ctx.kv_map.defined()) return kv.index_select(1, ctx.kv_map);  // [B,H,S,d]
  const int64_t B = kv.size(0), groups = kv.size(1), S = kv.size(2), d = kv.size(3);
  if (groups == heads) return kv;
  if (groups == 1) return kv.expand({B, heads, S, d});
  // Query head h uses key/value head h // (H / Hkv).
  return kv.unsqueeze(2).expand({B, groups, heads / groups, S, d}).reshape({B, heads, S, d});
}

Tensor multiply_gates(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  if (a.dim() == 4 && b.dim() < 4) return a * b.unsqueeze(-1);
  if (b.dim() == 4 && a.dim() < 4) return a.unsqueeze(-1) * b;
  return a * b;
}

Tensor level(const Tensor& z, const HeadContext& ctx) {
  if (!ctx.uniform.defined()) return z;
  return at::where(ctx.uniform.view({-1, 1, 1}) & z.isfinite(), 0, z);
}

Tensor level_queries(const Tensor& q, const HeadContext& ctx) {
  return ctx.uniform.defined() ? q.masked_fill(ctx.uniform.view({1, -1, 1, 1}), 0) : q;
}

Tensor merge_heads(const Tensor& o, const HeadContext& ctx) {
  auto gated = o;
  if (ctx.gates.defined()) {
    const auto& g = ctx.gates;
    gated = o * (g.dim() == 4 ? g : g.unsqueeze(-1)).to(o.scalar_type());  // [B,H,T,e]
  }
  if (ctx.offset.defined()) gated = gated + ctx.offset.to(o.scalar_type());
  if (ctx.probe) ctx.probe->outputs_of(o, gated);
  return gated.transpose(1, 2).reshape({o.size(0), o.size(2), o.size(1) * o.size(3)});  // [B,T,H*e]
}

Tensor within_length(const Tensor& length, int64_t n, const at::Device& device) {
  if (!length.defined()) return length;
  const auto places = at::arange(n, at::TensorOptions(at::kLong).device(device));
  return places < length.to(device).unsqueeze(1);  // [B,n]
}

Tensor allowed_keys(const AttentionMask& mask, int64_t T, int64_t S, const at::Device& device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  Tensor allowed;
  auto meet = [&](const Tensor& more) { allowed = allowed.defined() ? allowed & more : more; };
  // A lone query stands at the last key: it has no later ones.
  if ((mask.causal && T > 1) || mask.window > 0) {
    auto i = at::arange(S - T, S, options).unsqueeze(1);  // [T,1]
    auto behind = i - at::arange(S, options);             // [T,S]
    if (mask.causal) meet(behind >= 0);
    if (mask.window > 0) meet((mask.causal ? behind : behind.abs()) < mask.window);
  }
  if (mask.key_length.defined())
    meet(within_length(mask.key_length, S, device).unsqueeze(1).unsqueeze(1));  // [B,1,1,S]
  if (mask.allowed.defined()) meet(mask.allowed);
  return allowed;
}

Tensor counted_pairs(const Tensor& map, const Tensor& allowed, const AttentionMask& mask) {
  auto counted = allowed.defined() ? allowed : at::ones({}, map.options().dtype(at::kBool));
  if (const auto rows = within_length(mask.query_length, map.size(2), map.device()); rows.defined())
    counted = counted & rows.unsqueeze(1).unsqueeze(3);  // [B,1,T,1]
  return counted.expand_as(map);                         // [B,H,T,S]
}

Tensor scores(const Tensor& q, const Tensor& k, const HeadContext& ctx, double scale) {
  return add_biases(scaled_products(q, k, ctx, scale), ctx);
}

Tensor scaled_products(const Tensor& q, const Tensor& k, const HeadContext& ctx, double scale) {
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  auto queries = q, keys = repeat_kv(k, ctx, q.size(1));
  if (half) queries = queries.to(at::kFloat), keys = keys.to(at::kFloat);
  return at::matmul(queries * scale, keys.transpose(2, 3));  // [B,H,T,S]
}

Tensor biases_by_distance(const HeadContext& ctx, int64_t T, int64_t S) {
  auto table = ctx.position_bias->by_distance(1 - S, T - 1);
  if (ctx.head_ids.defined()) table = table.index_select(0, ctx.head_ids);
  return ctx.uniform.defined() ? table.masked_fill(ctx.uniform.unsqueeze(1), 0) : table;
}

Tensor biases_by_pair(const HeadContext& ctx, int64_t T, int64_t S) {
  // Row i is a window of S distances: i's keys lie at j - i = -i .. S-1-i.
  return biases_by_distance(ctx, T, S).unfold(1, S, 1).flip(1);  // [H,T,S]
}

Tensor add_biases(const Tensor& z, const HeadContext& ctx) {
  auto biased = level(z, ctx);
  if (ctx.position_bias)
    biased = biased + biases_by_pair(ctx, z.size(2), z.size(3)).to(z.scalar_type());
  return ctx.bias.defined() ? biased + ctx.bias.to(z.scalar_type()) : biased;
}

Tensor masked_softmax(const Tensor& z, const Tensor& allowed) {
  if (!allowed.defined()) return at::softmax(z, -1);
  // Hidden keys are taken out before the exponential: nothing turns NaN in a row without keys.
  auto hidden = allowed.logical_not();
  auto low = std::numeric_limits<float>::lowest();
  return at::softmax(z.masked_fill(hidden, low), -1).masked_fill(hidden, 0);  // [B,H,T,S]
}

Tensor weighted_values(const Tensor& a, const Tensor& v, const HeadContext& ctx) {
  auto weights = dropout(a, ctx.dropout, ctx.rng, CounterRng::kAttentionDropout);
  return at::matmul(weights.to(v.scalar_type()), repeat_kv(v, ctx, a.size(1)));  // [B,H,T,e]
}

namespace {

// torch's fused attention. It wants one dense mask and knows no row without keys.
Tensor sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const HeadContext& ctx,
            double scale) {
  const int64_t T = q.size(2), S = k.size(2), H = q.size(1);
  auto keys = repeat_kv(k, ctx, H), values = repeat_kv(v, ctx, H);
  const auto& m = ctx.mask;
  const bool plain = m.window == 0 && !m.key_length.defined() && !m.allowed.defined();
  if (plain && !ctx.bias.defined() && (!m.causal || T == S))
    return at::scaled_dot_product_attention(q, keys, values, {}, 0, m.causal && T > 1, scale);
  auto allowed = allowed_keys(m, T, S, q.device());
  Tensor seen;  // rows that may attend to something
  if (allowed.defined() && (m.key_length.defined() || m.allowed.defined())) {
    seen = allowed.any(-1, true);
    allowed = allowed | seen.logical_not();
  }
  auto mask = allowed;
  if (ctx.bias.defined()) {
    mask = ctx.bias.to(q.scalar_type());
    if (allowed.defined())
      mask = mask.masked_fill(allowed.logical_not(), -std::numeric_limits<float>::infinity());
  }
  if (mask.defined()) {
    while (mask.dim() < 4) mask = mask.unsqueeze(0);
    mask = mask.expand({mask.size(0), mask.size(1), T, S});
  }
  const auto given = mask.defined() ? std::optional<Tensor>(mask) : std::nullopt;
  auto out = at::scaled_dot_product_attention(q, keys, values, given, 0, false, scale);
  return seen.defined() ? out.masked_fill(seen.logical_not(), 0) : out;
}

bool sdpa_serves(const Tensor& q, const HeadContext& ctx) {
  const bool learned_bias = ctx.bias.defined() && ctx.bias.requires_grad();
  return ctx.dropout == 0 && !ctx.position_bias && !learned_bias && q.size(1) > 0;
}

// Torch's fused attention spares memory and time, but where narrow values are widened to the keys
// it multiplies zeros: then a map that is no larger than the queries is held, which takes half the
// time (measured with queries four times as wide as values, at T = 64 and 256).
bool pays(const Tensor& q, const Tensor& k, const Tensor& v) {
  return q.size(-1) < 2 * v.size(-1) || k.size(2) > q.size(-1);
}

// Features of 0 behind the others: they change no product.
Tensor widen(const Tensor& x, int64_t width) {
  return x.size(-1) < width ? at::constant_pad_nd(x, {0, width - x.size(-1)}) : x;
}

}  // namespace

Tensor attend(const Tensor& queries, const Tensor& k, const Tensor& v, const HeadContext& ctx,
              double scale) {
  const auto q = level_queries(queries, ctx);  // on every path; biases are level already
  Tensor out;
  const bool fused = sdpa_serves(q, ctx);
  TORCH_CHECK(ctx.backend != Backend::kSdpa || fused,
              "backend sdpa: not with dropout, a bias by distance or a bias that learns");
  if (ctx.backend == Backend::kSdpa || (ctx.backend == Backend::kAuto && fused && pays(q, k, v))) {
    // Without the scores in memory torch wants one width.
    const int64_t e = v.size(-1), width = std::max(q.size(-1), e);
    out = sdpa(widen(q, width), widen(k, width), widen(v, width), ctx, scale).narrow(-1, 0, e);
  } else {
    auto allowed = allowed_keys(ctx.mask, q.size(2), k.size(2), q.device());
    out = weighted_values(masked_softmax(scores(q, k, ctx, scale), allowed), v, ctx);
  }
  if (ctx.probe) ctx.probe->softmax(q, k, v, out, ctx, scale);
  return out;  // [B,H,T,e]
}

}  // namespace headlab
