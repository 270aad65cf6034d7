#include "core/projected_heads.h"

#include <cmath>

#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {

void BiasOptions::visit(Fields& f) {
  f("bias", bias, "biases on all four projections");
  f("qkv_bias", qkv_bias, "biases on q, k and v (default: bias)");
  f("o_bias", o_bias, "bias on the output projection (default: bias)");
}

Projections BiasOptions::projections() const {
  return {.qkv_bias = qkv_bias.value_or(bias), .o_bias = o_bias.value_or(bias)};
}

void MhaOptions::visit(Fields& f) {
  BiasOptions::visit(f);
  f("qk_norm", qk_norm, "norm of each query and key before rope, one weight for all heads");
  f("qk_norm_eps", qk_norm_eps, "epsilon of qk_norm", above(0));
  f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
}

Projections MhaOptions::projections() const {
  auto projections = BiasOptions::projections();
  projections.qk_norm = qk_norm;
  projections.qk_norm_eps = qk_norm_eps;
  return projections;
}

ProjectedHeads::ProjectedHeads(const HeadShape& s, const HeadTraits& traits,
                               const Projections& projections)
    : AttentionHeads(s, traits), centred_norm_(projections.centred_norm) {
  q_ = projection("q", s.d_model, s.heads * s.head_dim, projections.qkv_bias);
  k_ = projection("k", s.d_model, s.kv_heads * s.head_dim, projections.qkv_bias);
  v_ = projection("v", s.d_model, s.kv_heads * s.head_dim, projections.qkv_bias);
  o_ = projection("o", s.heads * s.head_dim, s.d_model, projections.o_bias);
  for (auto* linear : {&q_, &k_, &v_}) init_normal(*linear, 0.02);
  init_normal(o_, residual_std(s.layers));
  if (projections.qk_norm) {
    q_norm_ = register_module("q_norm", RmsNorm(s.head_dim, projections.qk_norm_eps));
    k_norm_ = register_module("k_norm", RmsNorm(s.head_dim, projections.qk_norm_eps));
  }
}

std::optional<HeadMatrices> ProjectedHeads::matrices() const {
  const int64_t D = shape_.d_model, H = shape_.heads, d = shape_.head_dim;
  const auto groups = at::tensor(kv_rows(), at::kLong).to(k_->weight.device());
  const auto of_heads = [&](const Linear& kv) {  // repeated for the query heads that share them
    return kv->weight.detach().view({shape_.kv_heads, d, D}).index_select(0, groups);
  };
  return HeadMatrices{.q = q_->weight.detach().view({H, d, D}),
                      .k = of_heads(k_),
                      .v = of_heads(v_),
                      .o = o_->weight.detach().view({D, H, d}).transpose(0, 1)};
}

Tensor ProjectedHeads::norm(RmsNorm& norm, const Tensor& x) const {
  if (!norm || x.size(1) == 0) return x;  // without heads there is no width either
  // The layer norm of x is the RMS norm of what is left without its mean.
  return norm(centred_norm_ ? x - x.mean(-1, /*keepdim=*/true) : x);
}

Tensor ProjectedHeads::queries(const Tensor& x, const HeadContext& ctx) {
  return rotate(norm(q_norm_, split_heads(q_(x), shape_.heads)), ctx, ctx.positions);
}

Tensor ProjectedHeads::keys(const Tensor& x, const HeadContext& ctx) {
  return remembered(ctx, "k", [&] {
    const auto k = norm(k_norm_, split_heads(k_(source(x, ctx)), shape_.kv_heads));
    return rotate(k, ctx, key_positions(ctx));
  });
}

Tensor ProjectedHeads::values(const Tensor& x, const HeadContext& ctx) {
  return remembered(ctx, "v", [&] { return split_heads(v_(source(x, ctx)), shape_.kv_heads); });
}

Tensor ProjectedHeads::output(const Tensor& heads, const HeadContext& ctx) {
  return o_(merge_heads(heads, ctx));
}

double ProjectedHeads::scale(const MhaOptions& options) const {
  return options.scale.value_or(1 / std::sqrt(shape_.head_dim));
}

void ProjectedHeads::copy_projections(const ProjectedHeads& from, const Kept& kept) {
  adopt_indices(from, kept);
  copy_heads(q_, from.q_, kept.rows, shape_.head_dim);
  copy_heads(k_, from.k_, kept.kv_rows, shape_.head_dim);
  copy_heads(v_, from.v_, kept.kv_rows, shape_.head_dim);
  copy_head_columns(o_, from.o_, kept.rows, shape_.head_dim);
  if (q_norm_) q_norm_->weight.set_data(from.q_norm_->weight.detach().clone());
  if (k_norm_) k_norm_->weight.set_data(from.k_norm_->weight.detach().clone());
}

}  // namespace headlab
