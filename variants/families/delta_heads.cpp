#include "variants/families/delta_heads.h"

#include <cmath>

#include "core/attention/precision.h"
#include "core/torch.h"
#include "variants/families/delta_rule.h"

namespace headlab {

void DeltaOptions::visit(Fields& f) {
  f("qk_heads", qk_heads, "heads of queries and keys, which heads share (default: heads)",
    at_least(1));
  f("value_dim", value_dim, "features of a value (default: head_dim)", at_least(1));
  f("conv", conv, "tokens that a convolution of queries, keys and values spans; 0: none",
    at_least(0));
  f("conv_bias", conv_bias, "biases on the convolutions");
  f("neg_eigval", neg_eigval,
    "b up to 2, so that eigenvalues of a token's correction may be negative");
  f("norm_eps", norm_eps, "epsilon of the output norm", above(0));
  f("scale", scale, "factor on queries (default: head_dim^-0.5)");
}

HeadTraits DeltaOptions::traits() const {
  HeadTraits t{.rows_sum_to_one = false, .masks = HeadMasks::kKeys, .bidirectional = false};
  t.windows = t.biases = t.cross = t.rotary = false;
  return t;
}

void DeltaOptions::derive(const HeadShape& shape) {
  qk_heads = qk_heads.value_or(shape.heads);
  value_dim = value_width(shape);
  if (!scale) scale = 1 / std::sqrt(shape.head_dim);
}

void DeltaOptions::check(const Complain& complain) const {
  if (conv_bias && conv == 0) complain("conv_bias", "there is no convolution; turn on conv");
}

void DeltaOptions::check_shape(const HeadShape& shape, const HeadDemands&,
                               const Complain& complain) const {
  if (qk_heads && shape.heads % *qk_heads != 0)
    complain("qk_heads", std::to_string(*qk_heads) + " do not divide " +
                             std::to_string(shape.heads) + " heads; choose a divisor");
}

DeltaHeads::DeltaHeads(const HeadShape& s, const DeltaOptions& options)
    : AttentionHeads(s, options.traits()),
      value_width_(options.value_width(s)),
      scale_(options.scale.value_or(1 / std::sqrt(s.head_dim))),
      norm_eps_(options.norm_eps),
      largest_beta_(options.neg_eigval ? 2 : 1),
      gates_by_silu_(options.gate == "silu") {
  const int64_t D = s.d_model, H = s.heads, values = H * value_width_;
  const auto of_qk = rows_of_group("qk");
  qk_heads_ = group_heads("qk", options.qk_heads.value_or(H));
  const int64_t keys = qk_heads_ * s.head_dim;
  q_ = projection("q", D, keys, false, of_qk), k_ = projection("k", D, keys, false, of_qk);
  v_ = projection("v", D, values, false, rows_of_heads());
  beta_ = projection("beta", D, H, false, rows_of_heads());
  init_projections({&q_, &k_, &v_}, output_projection(values, false), s);
  init_input(beta_, s);
  if (const int64_t w = options.conv; w > 0) {  // begin as torch's convolutions: U(+-w^-0.5)
    q_conv_ = projection("q_conv", w, keys, options.conv_bias, of_qk);
    k_conv_ = projection("k_conv", w, keys, options.conv_bias, of_qk);
    v_conv_ = projection("v_conv", w, values, options.conv_bias, rows_of_heads());
  }
  norm_ = register_module("norm", RmsNorm(at::IntArrayRef{value_width_}, norm_eps_));
  lay_out("norm.weight", shared_by_heads());
}

Tensor DeltaHeads::first_dt_biases(int64_t n) {
  const auto t = at::empty({n}).uniform_(std::log(0.001), std::log(0.1)).exp();
  return t + (-at::expm1(-t)).log();
}

std::vector<Statistic> DeltaHeads::own_statistics() const { return delta_statistics(); }

// The state costs the same for each token, however many lie before it.
double DeltaHeads::flops(int64_t T, int64_t /*S*/, double /*pairs*/) const {
  double weights = 0;
  for (const auto& p : parameters()) weights += static_cast<double>(p.numel());
  const auto state = static_cast<double>(shape_.heads * shape_.head_dim * value_width_);
  return static_cast<double>(T) * (2 * weights + 7 * state);
}

HeadOutput DeltaHeads::compute(const Tensor& x, const HeadCall& call) {
  const int64_t d = shape_.head_dim, H = shape_.heads, e = value_width_;
  if (H == 0) return {.y = output(x.new_zeros({x.size(0), 0, x.size(1), e}), call)};
  const VisibleTokens tokens(x, call);
  const auto make = [&](Input input, Linear& project, Linear& conv, int64_t heads, int64_t width,
                        const char* name) {
    return from_inputs(input, x, call, [&](const Tensor& from) {
      auto* taps = call.cache ? &call.cache->state(name) : nullptr;
      const auto p = split_heads(project(from), heads, width);
      const auto u = short_convolution(p, conv ? conv->weight : Tensor(),
                                       conv ? conv->bias : Tensor(), tokens, taps);
      return heads == H ? u : of_heads("qk", u);
    });
  };
  const auto unit = [](const Tensor& u) {
    return u * (u.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
  };
  const auto q = unit(make(Input::kQuery, q_, q_conv_, qk_heads_, d, "q"));  // [B,H,T,d]
  const auto k = unit(make(Input::kKey, k_, k_conv_, qk_heads_, d, "k"));    // [B,H,T,d]
  const auto v = make(Input::kValue, v_, v_conv_, H, e, "v");                // [B,H,T,e]
  const auto& rest = rest_of(x, call);
  const auto wide = q.scalar_type();
  const auto beta = beta_(rest).to(wide).sigmoid() * largest_beta_;  // [B,T,H]
  const auto o = attend_by_delta_rule({.q = q * scale_,
                                       .k = k,
                                       .v = v,
                                       .beta = tokens.close_up(split_heads(beta, H, 1)),
                                       .log_decay = tokens.close_up(log_decay(rest, wide))},
                                      tokens, call);  // [B,H,T,e]
  auto said = rms_norm(o, norm_->weight.to(wide), norm_eps_);
  if (const auto z = gate(rest); z.defined()) {
    const auto g = split_heads(z, H, e).to(wide);
    said = said * (gates_by_silu_ ? at::silu(g) : g.sigmoid());
  }
  return {.y = output(said.to(x.scalar_type()), call)};
}

}  // namespace headlab
