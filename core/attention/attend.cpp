#include "core/attention/attend.h"

#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "core/attention/call/cache.h"
#include "core/attention/call/observer.h"
#include "core/attention/maps/map.h"
#include "core/attention/paths/paths.h"
#include "core/attention/positions/positions.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

// In place of scores that are hidden, as a softmax takes them.
constexpr double kLowest = std::numeric_limits<float>::lowest();

// What goes back to a hidden score through the softmax is 0, so nothing is masked on that way.
struct LowestWhereHidden : torch::autograd::Function<LowestWhereHidden> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& z, const Tensor& hidden) {
    return z.masked_fill(hidden, kLowest);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0], Tensor()};
  }
};

}  // namespace

const Tensor& source(const Tensor& x, const HeadCall& call) {
  return call.memory.defined() ? call.memory : x;
}

Tensor key_positions(const HeadCall& call) {
  if (!call.memory.defined()) return call.positions;
  return at::arange(call.memory.size(1), call.positions.options());
}

int64_t past_places(const HeadCall& call) { return call.cache ? call.cache->length() : 0; }

Tensor split_heads(const Tensor& x, int64_t heads, std::optional<int64_t> d) {
  const int64_t width = d.value_or(heads > 0 ? x.size(2) / heads : 0);
  return x.view({x.size(0), x.size(1), heads, width}).transpose(1, 2);  // [B,H,T,d]
}

Tensor rotate(const Tensor& x, const HeadCall& call, const Tensor& positions) {
  return call.rotary ? call.rotary->rotate(x, positions) : x;
}

Tensor cached(const HeadCall& call, const std::string& name, const std::function<Tensor()>& compute,
              std::optional<int64_t> keep) {
  if (!call.cache) return compute();
  if (call.memory.defined()) return call.cache->once(name, compute);
  return call.cache->append(name, compute(), keep.value_or(call.mask.window));
}

Tensor cached_at_rate(const HeadCall& call, const std::string& name, CacheRate rate,
                      const std::function<Tensor(int64_t, int64_t)>& compute) {
  const int64_t fresh = key_positions(call).size(-1);
  if (!call.cache) return compute(0, rate.entries(fresh));
  if (call.memory.defined())
    return call.cache->once(name, [&] { return compute(0, rate.entries(fresh)); });
  const int64_t first = call.cache->entries(name);
  const auto made = compute(first, rate.entries(call.cache->length() + fresh) - first);
  return call.cache->append(name, made, /*keep=*/0, rate);
}

Tensor multiply_gates(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  if (a.dim() == 4 && b.dim() < 4) return a * b.unsqueeze(-1);
  if (b.dim() == 4 && a.dim() < 4) return a.unsqueeze(-1) * b;
  return a * b;
}

Tensor uniform_scores(const Tensor& z, const HeadCall& call) {
  if (!call.uniform.defined()) return z;
  return at::where(call.uniform.view({-1, 1, 1}) & z.isfinite(), 0, z);
}

Tensor uniform_queries(const Tensor& q, const HeadCall& call) {
  return call.uniform.defined() ? q.masked_fill(call.uniform.view({1, -1, 1, 1}), 0) : q;
}

const Tensor& rest_of(const Tensor& x, const HeadCall& call) {
  return call.inputs && call.inputs->rest.defined() ? call.inputs->rest : x;
}

const Tensor& rest_of_source(const Tensor& x, const HeadCall& call) {
  if (!call.memory.defined()) return rest_of(x, call);
  return call.inputs && call.inputs->rest_of_memory.defined() ? call.inputs->rest_of_memory
                                                              : call.memory;
}

Tensor exclude_own(const Tensor& o, const Tensor& v, const HeadCall& call) {
  const auto& share = call.shaping.exclusion;
  if (!share.defined() || o.numel() == 0) return o;
  TORCH_CHECK(!call.memory.defined(), "queries of a memory have no own value to take out");
  const WithoutAutocast exact;
  const auto own = widened(repeat_kv(v.slice(2, v.size(2) - o.size(2)), call.kv_map, o.size(1)));
  const auto wide = widened(o);  // [B,H,T,e]
  const auto square = own.square().sum(-1, /*keepdim=*/true).clamp_min(call.shaping.exclusion_eps);
  const auto along = (wide * own).sum(-1, /*keepdim=*/true) / square;  // [B,H,T,1]
  if (call.shaping.excludes) call.shaping.excludes(wide, own, along);
  return (wide - share.to(wide.scalar_type()).unsqueeze(-1) * along * own).to(o.scalar_type());
}

Tensor merge_heads(const Tensor& o, const HeadCall& call) {
  auto edited = o;
  if (call.gates.defined()) {
    const auto& g = call.gates;
    edited = o * (g.dim() == 4 ? g : g.unsqueeze(-1)).to(o.scalar_type());  // [B,H,T,e]
  }
  if (call.offset.defined()) edited = edited + call.offset.to(o.scalar_type());
  if (call.outputs) edited = call.outputs(edited);
  if (call.observer) call.observer->outputs(o, edited, call);
  return edited.transpose(1, 2).reshape(
      {o.size(0), o.size(2), o.size(1) * o.size(3)});  // [B,T,H*e]
}

Tensor scores(const Tensor& q, const Tensor& k, const HeadCall& call, double scale) {
  return add_biases(scaled_products(q, k, call, scale), call);
}

Tensor scaled_products(const Tensor& q, const Tensor& k, const HeadCall& call, double scale) {
  AttentionCall own;
  own.q = q, own.k = k, own.scale = scale, own.kv_map = call.kv_map;
  return own.products();
}

Tensor biases_by_distance(const HeadCall& call, int64_t T, int64_t S) {
  auto table = call.position_bias->by_distance(1 - S, T - 1);
  if (call.head_ids.defined()) table = table.index_select(0, call.head_ids);
  return call.uniform.defined() ? table.masked_fill(call.uniform.unsqueeze(1), 0) : table;
}

Tensor by_pair(const Tensor& by_distance, int64_t S) {
  // Row i is a window of S distances: i's keys lie at j - i = -i .. S-1-i.
  return by_distance.unfold(1, S, 1).flip(1);  // [H,T,S]
}

Tensor add_biases(const Tensor& z, const HeadCall& call) {
  return AttentionCall(call, z.size(2), z.size(3), z).biased(z);
}

Tensor widened(const Tensor& z) {
  return at::isReducedFloatingType(z.scalar_type()) ? z.to(at::kFloat) : z;
}

Tensor masked_softmax(const Tensor& scores, const Tensor& allowed) {
  const auto z = widened(scores);
  if (!allowed.defined()) return at::softmax(z, -1);
  // Hidden keys are taken out before the exponential: nothing turns NaN in a row without keys.
  const auto p = at::softmax(LowestWhereHidden::apply(z, allowed.logical_not()), -1);  // [B,H,T,S]
  const auto seen = allowed.any(-1, /*keepdim=*/true);
  // On a GPU the question alone would wait for all work that is queued there.
  return seen.is_cpu() && seen.all().item<bool>() ? p : p * seen;
}

Tensor log_sum_exp(const Tensor& scores, const Tensor& allowed) {
  const auto z = widened(scores);
  if (!allowed.defined()) return at::logsumexp(z, -1);
  const auto blind = allowed.any(-1).logical_not();  // rows without any key
  return at::logsumexp(LowestWhereHidden::apply(z, allowed.logical_not()), -1)
      .masked_fill(blind, -std::numeric_limits<double>::infinity());  // [B,H,T]
}

Tensor weighted_values(const Tensor& a, const Tensor& v, const HeadCall& call) {
  AttentionCall own;
  own.q = a, own.v = v, own.kv_map = call.kv_map, own.dropout = call.dropout, own.rng = call.rng;
  return weighted_values(a, own);
}

Tensor weighted_values(const Tensor& a, const AttentionCall& call) {
  const WithoutAutocast exact;
  const auto weights = dropout(a, call.dropped());
  return at::matmul(weights.to(call.v.scalar_type()), call.values());  // [B,H,T,e]
}

void observe_attention(const AttentionCall& own, const Tensor& out, const HeadCall& call,
                       const Tensor& counted) {
  if (own.map->is_softmax()) return call.observer->softmax(own, out, counted);
  if (!call.observer->wants_maps()) return;
  at::NoGradGuard no_grad;
  const auto z = own.scores(), p = weights_of(z, own.allowed_keys(), own);
  observe_weights({.scores = z, .p = p, .a = p, .v = own.v, .out = out, .counted = counted}, call);
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
              double scale) {
  const AttentionCall own(q, k, v, call, scale);
  const auto out = attended(own).out;  // [B,H,T,e]
  if (call.observer) observe_attention(own, out, call);
  return out;
}

AttendedRows attend_lse(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                        double scale) {
  AttentionCall own(q, k, v, call, scale);
  own.map = plain_softmax();
  own.wants_lse = true;
  const auto rows = attended(own);
  if (call.observer) call.observer->softmax(own, rows.out);
  return rows;
}

}  // namespace headlab
