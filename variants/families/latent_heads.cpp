#include "variants/families/latent_heads.h"

#include <cmath>

#include "core/attention/precision.h"
#include "core/attention/weight_dropout.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr const char* kLatents = "latents";  // a group of heads

Tensor normed(RmsNorm& norm, const Tensor& x) { return norm ? norm(x) : x; }

double numel(const Linear& linear) {
  return linear ? static_cast<double>(linear->weight.numel()) : 0;
}

}  // namespace

double LatentProjections::usual_scale() const {
  return 1 / std::sqrt(static_cast<double>(content + rope));
}

void LatentOptions::visit(Fields& f) {
  f("nope_dim", nope_dim, "query and key features without positions (default: head_dim)",
    at_least(1));
  f("rope_dim", rope_dim,
    "query and key features with rotary positions, keys of all heads alike (default: head_dim / 2)",
    at_least(0));
  f("value_dim", value_dim, "features of a value (default: head_dim)", at_least(1));
  f("norm_eps", norm_eps, "epsilon of the norms of latents", above(0));
  f("scale", scale, "factor on q k^T (default: (nope_dim + rope_dim)^-0.5)");
}

void LatentOptions::derive(const HeadShape& shape) {
  const auto p = projections(shape);
  kv_rank = p.latent, nope_dim = p.content, rope_dim = p.rope, value_dim = p.value;
  if (!scale) scale = p.usual_scale();
}

LatentProjections LatentOptions::widths(const HeadShape& s, int64_t usual_latent) const {
  LatentProjections p;
  p.latent = kv_rank.value_or(usual_latent);
  p.content = nope_dim.value_or(s.head_dim);
  p.rope = rope_dim.value_or(s.head_dim / 2);
  p.value = value_dim.value_or(s.head_dim);
  p.norm_eps = norm_eps, p.scale = scale;
  return p;
}

LatentHeads::LatentHeads(const HeadShape& s, const HeadTraits& traits, const LatentProjections& p)
    : AttentionHeads(s, traits), p_(p), scale_(p.scale.value_or(p.usual_scale())) {
  const int64_t D = s.d_model, H = s.heads, width = p.content + p.rope;
  if (p.query_latent > 0) {
    q_down_ = projection("q_down", D, p.query_latent, p.down_bias, shared_by_heads());
    if (p.norm) q_norm_ = norm("q_norm", p.query_latent, shared_by_heads());
    q_ = projection("q_up", p.query_latent, H * width, p.q_bias, rows_of_heads());
  } else {
    q_ = projection("q", D, H * width, p.q_bias, rows_of_heads());
  }
  const int64_t all = p.groups ? group_heads(kLatents, *p.groups) : 1;
  const auto axes = p.groups ? rows_of_group(kLatents) : shared_by_heads();
  kv_down_ = projection("kv_down", D, all * p.latent, p.down_bias, axes);
  if (p.rope > 0) k_rope_ = projection("k_rope", D, p.rope, p.down_bias, shared_by_heads());
  if (p.norm) kv_norm_ = norm("kv_norm", all * p.latent, axes);
  k_up_ = projection("k_up", p.latent, H * p.content, p.up_bias, rows_of_heads());
  v_up_ = projection("v_up", p.latent, H * p.value, p.up_bias, rows_of_heads());
  output_projection(H * p.value, p.o_bias);
  for (auto* linear : {&q_down_, &q_, &kv_down_, &k_rope_, &k_up_, &v_up_})
    if (*linear) init_input(*linear, s);
  init_output(o_, s);
}

RmsNorm LatentHeads::norm(const char* name, int64_t features, const HeadAxes& axes) {
  lay_out(std::string(name) + ".weight", axes);
  return register_module(name, RmsNorm(at::IntArrayRef{features}, p_.norm_eps));
}

std::optional<HeadMatrices> LatentHeads::matrices() const {
  const int64_t D = shape_.d_model, H = shape_.heads;
  auto q = q_->weight.detach();
  if (q_down_) q = q.mm(q_down_->weight.detach());
  auto down = kv_down_->weight.detach().view({-1, p_.latent, D});  // [g,c,D]
  if (p_.groups) down = of_heads(kLatents, down.unsqueeze(0)).squeeze(0);
  const auto made_by = [&](const Tensor& up, int64_t width) {
    return at::matmul(up.detach().view({H, width, p_.latent}), down);  // [H,width,D]
  };
  return HeadMatrices{.q = q.view({H, p_.content + p_.rope, D}).narrow(1, 0, p_.content),
                      .k = made_by(k_up_->weight, p_.content),
                      .v = made_by(v_up_->weight, p_.value),
                      .o = o_->weight.detach().view({D, H, p_.value}).transpose(0, 1)};
}

double LatentHeads::flops(int64_t T, int64_t S, double pairs) const {
  const auto width = static_cast<double>(p_.content + p_.rope + p_.value);
  return 2.0 * T * (numel(q_down_) + numel(q_) + numel(o_)) +
         2.0 * S * (numel(kv_down_) + numel(k_rope_) + numel(k_up_) + numel(v_up_)) +
         2 * pairs * static_cast<double>(shape_.heads) * width;
}

HeadOutput LatentHeads::compute(const Tensor& x, const HeadCall& call) {
  const auto q = from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
    return split_heads(q_(q_down_ ? normed(q_norm_, q_down_(from)) : from), shape_.heads,
                       p_.content + p_.rope);
  });  // [B,H,T,n+r]
  const auto content = q.narrow(3, 0, p_.content);
  const auto turned = rotate(q.narrow(3, p_.content, p_.rope), call, call.positions);
  const auto& y = source(x, call);
  if (call.inputs) return of_own_inputs(at::cat({content, turned}, 3), y, call);
  const auto latents = by_group(cached(call, "latent", [&] { return latents_of(y); }), call);
  Tensor keys;
  if (k_rope_) keys = cached(call, "rope", [&] { return turned_keys(y, call); });  // [B,1,S,r]
  if (absorbs(x.size(1), latents.size(2), call)) {
    const auto heads = absorbed(content, turned, latents, keys, call);         // [B,H,T,e]
    if (!call.shaping.exclusion.defined()) return {.y = output(heads, call)};  // [B,T,D]
    return {.y = output(heads, up(v_up_, latents, p_.value), call)};
  }
  const auto v = up(v_up_, latents, p_.value);
  const auto heads = attend(keys.defined() ? at::cat({content, turned}, 3) : content,
                            full_keys(latents, keys), v, call, scale_);
  return {.y = output(heads, v, call)};
}

// Each head's latents are of its own copies: [B,T,D].
HeadOutput LatentHeads::of_own_inputs(const Tensor& q, const Tensor& y, const HeadCall& call) {
  const auto k = from_inputs(Input::kKey, y, call, [&](const Tensor& from) {
    return full_keys(by_group(latents_of(from), call), turned_keys(from, call));
  });  // [B,H,S,n+r]
  const auto v = from_inputs(Input::kValue, y, call, [&](const Tensor& from) {
    return up(v_up_, by_group(latents_of(from), call), p_.value);
  });  // [B,H,S,e]
  return {.y = output(attend(q, k, v, call, scale_), v, call)};
}

Tensor LatentHeads::latents_of(const Tensor& y) {
  const auto all = kv_down_(y);
  const auto split = split_heads(all, all.size(2) / p_.latent, p_.latent);
  return split.numel() > 0 ? normed(kv_norm_, split) : split;
}

Tensor LatentHeads::turned_keys(const Tensor& y, const HeadCall& call) {
  return k_rope_ ? rotate(k_rope_(y).unsqueeze(1), call, key_positions(call)) : Tensor();
}

// What is left of the heads need not be as many of each latent.
Tensor LatentHeads::by_group(const Tensor& latents, const HeadCall& call) const {
  const bool in_turn = !call.head_ids.defined() || latents.size(1) < 2;
  return in_turn ? latents : of_heads(kLatents, latents);
}

// Whether the latents meet the queries with fewer operations than keys and values are made from
// them. An observer sees values, and a fused path is asked for by heads: both want these.
bool LatentHeads::absorbs(int64_t T, int64_t S, const HeadCall& call) const {
  if (call.observer || (call.backend != Backend::kAuto && call.backend != Backend::kEager))
    return false;
  const int64_t ups = p_.latent * (p_.content + p_.value), r = p_.rope;
  return T * ups + T * S * (2 * p_.latent + r) < S * ups + T * S * (p_.content + r + p_.value);
}

// What the heads of each latent make of it: [B,H,S,width].
Tensor LatentHeads::up(const Linear& linear, const Tensor& latents, int64_t width) const {
  const int64_t g = latents.size(1);
  if (g == 0) return latents.new_empty({latents.size(0), 0, latents.size(2), width});
  const int64_t heads = shape_.heads / g;
  const auto& bias = linear->bias;
  std::vector<Tensor> made;
  for (int64_t u = 0; u < g; ++u) {
    const auto own = [&](const Tensor& rows) {
      return g == 1 ? rows : rows.narrow(0, u * heads * width, heads * width);
    };
    made.push_back(split_heads(
        project(latents.select(1, u), own(linear->weight), bias.defined() ? own(bias) : bias),
        heads, width));
  }
  return g == 1 ? made.front() : at::cat(made, 1);
}

Tensor LatentHeads::full_keys(const Tensor& latents, const Tensor& turned) const {
  const auto k = up(k_up_, latents, p_.content);
  return turned.defined() ? at::cat({k, turned.expand({-1, shape_.heads, -1, -1})}, 3) : k;
}

// The heads of a latent have the same keys and values: their queries are rows of one product.
Tensor LatentHeads::absorbed(const Tensor& content, const Tensor& turned, const Tensor& L,
                             const Tensor& keys, const HeadCall& call) const {
  const int64_t H = shape_.heads, T = content.size(2);
  const auto wide = at_least_float(content);
  const auto matrices_of = [&](const Linear& up, int64_t width) {
    return up->weight.view({H, width, p_.latent});
  };
  const auto rows = [&](const Tensor& t, int64_t groups) {  // [B,H,T,.] -> [B,groups,H/groups T,.]
    return t.reshape({t.size(0), groups, groups > 0 ? H / groups * T : 0, t.size(3)});
  };
  const auto products = [&](const Tensor& of_queries, const Tensor& of_keys) {
    const WithoutAutocast exact;
    const auto q = rows(of_queries, of_keys.size(1)).to(wide) * scale_;
    return at::matmul(q, of_keys.to(wide).mT()).view({q.size(0), H, T, of_keys.size(2)});
  };
  auto z = products(at::matmul(content, matrices_of(k_up_, p_.content)), L);  // [B,H,T,S]
  if (keys.defined()) z = z + products(turned, keys);
  if (k_up_->bias.defined())  // the softmax does not see it; then its gradient is 0, not missing
    z = z + scale_ * (content.to(wide) * k_up_->bias.view({H, 1, p_.content})).sum(3, true);
  z = add_biases(z, call);
  const auto a = masked_softmax(z, allowed_keys(call.mask, T, L.size(2), L.device()));
  const auto kept = dropout(a, weight_dropout(call.dropout, call.rng)).to(L.scalar_type());
  const auto sums = at::matmul(rows(kept, L.size(1)), L).view({L.size(0), H, T, p_.latent});
  const auto heads = at::matmul(sums, matrices_of(v_up_, p_.value).mT());  // [B,H,T,e]
  if (!v_up_->bias.defined()) return heads;
  return heads + kept.sum(-1, /*keepdim=*/true) * v_up_->bias.view({H, 1, p_.value});
}

}  // namespace headlab
