#include "experiments/models/transformer_block.h"

#include <cmath>

#include "core/attention/layers.h"
#include "core/torch.h"

namespace headlab {
namespace {

// As the model initialises what it is made of; Xavier uniform is torch's, U(+-sqrt(6/(in+out))).
Linear linear(int64_t in, int64_t out, const StackOptions& options, double std) {
  Linear made(in, out, options.bias);
  if (options.init() != Init::kXavier) return init_normal(made, std), made;
  torch::NoGradGuard no_grad;
  const double bound = std::sqrt(6.0 / static_cast<double>(in + out));
  made->weight.uniform_(-bound, bound);
  if (made->bias.defined()) made->bias.zero_();
  return made;
}

}  // namespace

NormImpl::NormImpl(const StackOptions& options)
    : rms_(options.norm == "rms"), eps_(options.norm_eps) {
  weight_ = register_parameter("weight", at::ones({options.d_model}));
  if (options.bias && !rms_) bias_ = register_parameter("bias", at::zeros({options.d_model}));
}

Tensor NormImpl::forward(const Tensor& x) {
  return rms_ ? rms_norm(x, weight_, eps_)
              : at::layer_norm(x, weight_.sizes(), weight_, bias_, eps_);
}

Tensor activate(const std::string& name, const Tensor& x) {
  if (name == "relu") return at::relu(x);
  if (name == "silu") return at::silu(x);
  TORCH_CHECK(name == "gelu" || name == "gelu_tanh", "no plain activation is called ", name);
  return at::gelu(x, name == "gelu_tanh" ? "tanh" : "none");
}

MlpImpl::MlpImpl(const StackOptions& options)
    : activation_(options.mlp), dropout_(options.activation_dropout) {
  const int64_t D = options.d_model, F = options.hidden_width();
  const double down_std = options.init() == Init::kGpt2 ? residual_std(options.layers) : 0.02;
  up_ = register_module("up", linear(D, F, options, 0.02));
  if (activation_ == "swiglu") gate_ = register_module("gate", linear(D, F, options, 0.02));
  down_ = register_module("down", linear(F, D, options, down_std));
}

Tensor MlpImpl::forward(const Tensor& x, const CounterRng& rng) {
  const auto hidden = gate_ ? at::silu(gate_(x)) * up_(x) : activate(activation_, up_(x));
  const double p = is_training() ? dropout_ : 0;
  return down_(dropout(hidden, p, rng, CounterRng::kActivationDropout));  // [B,T,D]
}

double MlpImpl::flops_per_token() const {
  return 2.0 * (gate_ ? 3 : 2) * static_cast<double>(up_->weight.numel());
}

TransformerBlockImpl::TransformerBlockImpl(const StackOptions& options, int64_t layer,
                                           int64_t context)
    : draws_{.site = CounterRng::site_key(options.site()), .layer = layer},
      pre_norm_(options.pre_norm),
      dropout_(options.dropout) {
  norm1_ = register_module("norm1", Norm(options));
  attention_ = register_module(
      "attention", make_heads(options.attention_of(layer), options.shape(layer, context),
                              options.demands(layer)));
  norm2_ = register_module("norm2", Norm(options));
  if (const auto* kind = options.cross()) {
    const auto shape = options.cross_shape(layer, context);
    cross_ = register_module("cross", make_heads(*kind, shape, {.cross = true}));
    norm3_ = register_module("norm3", Norm(options));
  }
  mlp_ = register_module("mlp", Mlp(options));
}

Tensor TransformerBlockImpl::forward(const Tensor& x, const HeadContext& self,
                                     const HeadContext& cross, std::vector<AuxLoss>& aux) {
  CounterRng rng = self.rng;
  rng.site = draws_.site, rng.layer = draws_.layer;
  CounterRng cross_rng = rng;
  cross_rng.site = CounterRng::site_key(kCrossSite);
  const double p = is_training() ? dropout_ : 0;
  const auto attend = [&](AttentionHeads& heads, const Tensor& from, const HeadContext& ctx,
                          const CounterRng& draws) {
    auto out = heads.forward(from, ctx);
    aux.insert(aux.end(), out.aux.begin(), out.aux.end());
    return dropout(out.y, p, draws, CounterRng::kResidualDropout);
  };
  const auto add = [&](const Tensor& y, Norm& norm, const auto& f) {
    return pre_norm_ ? y + f(norm(y)) : norm(y + f(y));  // [B,T,D]
  };
  auto y = add(x, norm1_, [&](const Tensor& from) { return attend(*attention_, from, self, rng); });
  if (cross_)
    y = add(y, norm2_, [&](const Tensor& from) { return attend(*cross_, from, cross, cross_rng); });
  return add(y, cross_ ? norm3_ : norm2_, [&](const Tensor& from) {
    return dropout(mlp_(from, rng), p, rng, CounterRng::kMlpDropout);
  });
}

}  // namespace headlab
