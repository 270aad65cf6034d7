#include "core/attention/call/attention_call.h"

#include <algorithm>

#include "core/attention/attend.h"
#include "core/attention/call/cache.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {

Tensor kv_heads(const Tensor& kv_map, int64_t H, int64_t groups, const at::Device& device) {
  if (kv_map.defined()) return kv_map;
  const auto heads = at::arange(H, at::TensorOptions(at::kLong).device(device));
  return heads.floor_divide(std::max<int64_t>(1, H / std::max<int64_t>(1, groups)));
}

Tensor repeat_kv(const Tensor& kv, const Tensor& kv_map, int64_t heads) {
  if (kv_map.defined()) return kv.index_select(1, kv_map);  // [B,H,S,d]
  const int64_t B = kv.size(0), groups = kv.size(1), S = kv.size(2), d = kv.size(3);
  if (groups == heads) return kv;
  if (groups == 1) return kv.expand({B, heads, S, d});
  // Query head h uses key/value head h // (H / Hkv).
  return kv.unsqueeze(2).expand({B, groups, heads / groups, S, d}).reshape({B, heads, S, d});
}

AttentionCall::AttentionCall(const HeadCall& call, int64_t T, int64_t S, const Tensor& like)
    : reach(key_reach(call.mask.causal, call.mask.window)),
      causal(call.mask.causal),
      places(call.places),
      key_length(call.mask.key_length),
      query_length(call.mask.query_length),
      allowed(call.mask.allowed),
      bias(call.bias),
      kv_map(call.kv_map),
      uniform(call.uniform),
      map(call.map),
      dropout(call.dropout),
      rng(call.rng),
      first_place(call.cache    ? call.cache->length()
                  : call.places ? S - T
                                : 0),
      backend(call.backend) {
  const auto type = at_least_float(like);
  if (bias.defined()) bias = bias.to(type);
  if (call.position_bias) distance_bias = biases_by_distance(call, T, S).to(type);
}

AttentionCall::AttentionCall(const Tensor& queries, const Tensor& keys, const Tensor& values,
                             const HeadCall& call, double factor)
    : AttentionCall(call, queries.size(2), keys.size(2), queries) {
  q = uniform_queries(queries, call);  // biases are equal already
  k = keys, v = values, scale = factor;
  hide_by_bias(bias, allowed);
}

at::ScalarType AttentionCall::score_type() const { return at_least_float(q); }

Tensor AttentionCall::keys() const { return repeat_kv(k, kv_map, q.size(1)); }
Tensor AttentionCall::values() const { return repeat_kv(v, kv_map, q.size(1)); }

Tensor AttentionCall::allowed_keys() const {
  return headlab::allowed_keys(reach, key_length, allowed, q.size(2), k.size(2), q.device());
}

Tensor AttentionCall::products() const {
  const WithoutAutocast exact;
  const auto type = score_type();
  const auto scaled = scale == 1 ? q.to(type) : q.to(type) * scale;
  if (k.size(1) == 1 && !kv_map.defined())  // one matrix of keys meets the queries of all heads
    return at::matmul(scaled.flatten(1, 2), k.squeeze(1).to(type).mT())
        .view({q.size(0), q.size(1), q.size(2), k.size(2)});
  return at::matmul(scaled, keys().to(type).mT());  // [B,H,T,S]
}

Tensor AttentionCall::biased(const Tensor& products) const {
  auto z = widened(products);
  if (uniform.defined()) z = at::where(uniform.view({-1, 1, 1}) & z.isfinite(), 0, z);
  const auto type = z.scalar_type();
  if (distance_bias.defined()) z = z + by_pair(distance_bias, z.size(3)).to(type);
  return bias.defined() ? z + bias.to(type) : z;
}

AttentionMask AttentionCall::mask() const {
  AttentionMask mask;
  mask.causal = causal;
  mask.query_length = query_length, mask.key_length = key_length;
  mask.allowed = allowed_keys();
  return mask;
}

AttentionCall AttentionCall::without_inputs() const {
  auto rest = *this;
  rest.q = rest.k = rest.v = Tensor();
  rest.rows = nullptr;
  rest.pre = rest.post = {};
  return rest;
}

template <class T>
View<const T> view(const Tensor& t) {
  View<const T> view;
  if (!t.defined()) return view;
  view.data = t.const_data_ptr<T>();
  std::copy_n(t.sizes().begin(), t.dim(), view.size);
  std::copy_n(t.strides().begin(), t.dim(), view.stride);
  return view;
}
template View<const bool> view(const Tensor&);
template View<const float> view(const Tensor&);
template View<const double> view(const Tensor&);

Tensor dense_rows(const Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

template <class T>
AttentionRows<T> kernel_rows(const AttentionCall& call, at::Device device,
                             std::vector<Tensor>& held) {
  constexpr auto kType = at::CppTypeToScalarType<T>::value;
  const auto here = [&](const Tensor& t, at::ScalarType type) -> const Tensor& {
    return held.emplace_back(t.defined() ? t.detach().to(device, type) : t);
  };
  const auto rows_of = [&](const Tensor& t) {
    return view<T>(held.emplace_back(dense_rows(here(t, kType))));
  };
  const auto numbers = [&](const Tensor& t) {
    if (!t.defined()) return static_cast<const int64_t*>(nullptr);
    return held.emplace_back(here(t, at::kLong).contiguous()).template const_data_ptr<int64_t>();
  };
  AttentionRows<T> p;
  p.B = call.q.size(0), p.H = call.q.size(1), p.queries = call.q.size(2), p.d = call.q.size(3);
  p.keys = call.k.size(2);
  p.q = rows_of(call.q), p.k = rows_of(call.k);
  p.scale = call.scale;
  p.reach = call.reach;
  p.cross = !call.places;
  p.query_length = numbers(call.query_length), p.key_length = numbers(call.key_length);
  const std::vector<int64_t> map{p.B, p.H, p.queries, p.keys};
  if (call.allowed.defined())
    p.allowed = view<bool>(held.emplace_back(here(call.allowed, at::kBool).expand(map)));
  if (call.bias.defined()) p.bias = view<T>(held.emplace_back(here(call.bias, kType).expand(map)));
  if (call.distance_bias.defined())
    p.distance_bias = held.emplace_back(here(call.distance_bias, kType).contiguous())
                          .template const_data_ptr<T>();
  return p;
}
template AttentionRows<float> kernel_rows(const AttentionCall&, at::Device, std::vector<Tensor>&);
template AttentionRows<double> kernel_rows(const AttentionCall&, at::Device, std::vector<Tensor>&);

}  // namespace headlab
