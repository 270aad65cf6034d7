// The transformer block: attention and MLP, each with its norm and residual.
#include "experiments/models/stack.h"

#include "core/attention/norm.h"
#include "core/torch.h"

namespace headlab {
namespace {

Linear linear(int64_t in, int64_t out, bool bias, double std) {
  Linear made(in, out, bias);
  init_normal(made, std);
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

MlpImpl::MlpImpl(const StackOptions& options) : activation_(options.mlp) {
  const int64_t D = options.d_model, F = options.hidden_width();
  up_ = register_module("up", linear(D, F, options.bias, 0.02));
  if (activation_ == "swiglu") gate_ = register_module("gate", linear(D, F, options.bias, 0.02));
  down_ = register_module("down", linear(F, D, options.bias, residual_std(options.layers)));
}

Tensor MlpImpl::activate(const Tensor& x) const {
  if (activation_ == "relu") return at::relu(x);
  return at::gelu(x, activation_ == "gelu_tanh" ? "tanh" : "none");
}

Tensor MlpImpl::forward(const Tensor& x) {
  return down_(gate_ ? at::silu(gate_(x)) * up_(x) : activate(up_(x)));  // [B,T,D]
}

double MlpImpl::flops_per_token() const {
  return 2.0 * (gate_ ? 3 : 2) * static_cast<double>(up_->weight.numel());
}

TransformerBlockImpl::TransformerBlockImpl(const StackOptions& options, int64_t layer,
                                           int64_t context)
    : layer_(layer), pre_norm_(options.pre_norm), dropout_(options.dropout) {
  norm1_ = register_module("norm1", Norm(options));
  attention_ = register_module(
      "attention", make_heads(options.attention_of(layer), options.shape(layer, context),
                              options.demands(layer)));
  norm2_ = register_module("norm2", Norm(options));
  mlp_ = register_module("mlp", Mlp(options));
}

Tensor TransformerBlockImpl::forward(const Tensor& x, const HeadContext& ctx,
                                     std::vector<AuxLoss>& aux) {
  CounterRng rng = ctx.rng;
  rng.layer = layer_;
  const double p = is_training() ? dropout_ : 0;
  auto attend = [&](const Tensor& from) {
    auto out = attention_->forward(from, ctx);
    aux.insert(aux.end(), out.aux.begin(), out.aux.end());
    return dropout(out.y, p, rng, CounterRng::kResidualDropout);
  };
  auto transform = [&](const Tensor& from) {
    return dropout(mlp_(from), p, rng, CounterRng::kMlpDropout);
  };
  if (pre_norm_) {
    auto y = x + attend(norm1_(x));
    return y + transform(norm2_(y));  // [B,T,D]
  }
  auto y = norm1_(x + attend(x));
  return norm2_(y + transform(y));  // [B,T,D]
}

void TransformerBlockImpl::exchange(std::shared_ptr<AttentionHeads> heads) {
  attention_ = replace_module("attention", std::move(heads));
}

}  // namespace headlab
