#include "core/projected_heads.h"

#include <cmath>

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
  projections.scale = scale;
  return projections;
}

QkvHeads::QkvHeads(const HeadShape& s, const HeadTraits& traits, const Projections& p)
    : AttentionHeads(s, traits),
      centred_norm_(p.centred_norm),
      maps_(p.maps),
      key_maps_(p.key_maps.value_or(p.maps)),
      qk_width_(p.qk_width.value_or(s.head_dim)),
      v_width_(p.v_width.value_or(s.head_dim)),
      scale_(p.scale.value_or(1 / std::sqrt(qk_width_))) {
  const int64_t D = s.d_model;
  q_ = projection("q", D, s.heads * maps_ * qk_width_, p.qkv_bias, rows_of_heads());
  std::vector<Linear*> inputs{&q_};
  const auto of_kv = [&](Linear& linear, const char* name, int64_t width) {
    linear = projection(name, D, s.kv_heads * width, p.qkv_bias, rows_of_kv_heads());
    inputs.push_back(&linear);
  };
  if (!s.keys_given) of_kv(k_, "k", key_maps_ * qk_width_);
  if (!s.values_given) of_kv(v_, "v", v_width_);
  output_projection(s.heads * v_width_, p.o_bias);
  for (auto* linear : inputs) init_input(*linear, s);
  init_output(o_, s);
  if (!p.qk_norm) return;
  const auto norm = [&](const char* name, int64_t heads, const HeadAxes& axes) {
    const std::vector<int64_t> of_heads{heads, qk_width_}, of_all{qk_width_};
    auto norm = register_module(
        name, RmsNorm(p.norm_per_head ? of_heads : of_all, p.qk_norm_eps, p.norm_bias));
    for (const char* of_norm : {".weight", ".bias"})
      lay_out(name + std::string(of_norm), p.norm_per_head ? axes : shared_by_heads());
    return norm;
  };
  q_norm_ = norm("q_norm", s.heads * maps_, rows_of_heads());
  if (!s.keys_given) k_norm_ = norm("k_norm", s.kv_heads * key_maps_, rows_of_kv_heads());
}

std::optional<HeadMatrices> QkvHeads::matrices() const {
  if (maps_ > 1 || !k_ || !v_) return std::nullopt;
  const int64_t D = shape_.d_model, H = shape_.heads;
  const auto groups = at::tensor(group_rows(kKvHeads), at::kLong).to(k_->weight.device());
  const auto of_heads = [&](const Linear& kv, int64_t width) {  // repeated for those that share
    return kv->weight.detach().view({shape_.kv_heads, width, D}).index_select(0, groups);
  };
  return HeadMatrices{.q = q_->weight.detach().view({H, qk_width_, D}),
                      .k = of_heads(k_, qk_width_),
                      .v = of_heads(v_, v_width_),
                      .o = o_->weight.detach().view({D, H, v_width_}).transpose(0, 1)};
}

double QkvHeads::projected_flops(int64_t T, int64_t S, double pairs) const {
  const auto numel = [](const Linear& linear) {
    return linear ? static_cast<double>(linear->weight.numel()) : 0;
  };
  return 2.0 * T * (numel(q_) + numel(o_)) + 2.0 * S * (numel(k_) + numel(v_)) +
         pairs * flops_of_pair();
}

double QkvHeads::flops_of_pair() const {
  return 2.0 * static_cast<double>(shape_.heads * maps_ * (qk_width_ + v_width_));
}

Tensor QkvHeads::norm(RmsNorm& norm, const Tensor& x) const {
  if (!norm || x.size(1) == 0) return x;  // without heads there is no width either
  // The layer norm of x is the RMS norm of what is left without its mean.
  return norm(centred_norm_ ? x - x.mean(-1, /*keepdim=*/true) : x);
}

Tensor QkvHeads::queries(const Tensor& x, const HeadCall& call) {
  return from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
    const auto q = call.shaping.q(split_heads(q_(from), shape_.heads * maps_, qk_width_));
    return rotate(norm(q_norm_, q), call, call.positions);
  });
}

Tensor QkvHeads::keys(const Tensor& x, const HeadCall& call) {
  if (!k_) return call.shaping.keys;
  const auto make = [&](const Tensor& from) {
    const auto k = call.shaping.k(split_heads(k_(from), shape_.kv_heads * key_maps_, qk_width_));
    return rotate(norm(k_norm_, k), call, key_positions(call));
  };
  const auto k =
      cached(call, "k", [&] { return from_inputs(Input::kKey, source(x, call), call, make); });
  if (call.link && shape_.offers.keys_values) call.link->keys = k;
  return k;
}

Tensor QkvHeads::values(const Tensor& x, const HeadCall& call) {
  if (!v_) return call.shaping.values;
  const auto& y = source(x, call);
  const auto project = [&](const Tensor& from) {
    return split_heads(v_(from), shape_.kv_heads, v_width_);
  };
  const auto v = cached(call, "v", [&] {
    Tensor projected;
    const auto made = from_inputs(Input::kValue, y, call, [&](const Tensor& from) {
      projected = project(from);
      return call.shaping.v(projected);
    });
    if (call.link && shape_.offers.first_values)
      call.link->first_values =
          call.inputs ? from_inputs(Input::kValue, y, call, project) : projected;
    return made;
  });
  if (call.link && shape_.offers.keys_values) call.link->values = v;
  return v;
}

}  // namespace headlab
