#include "core/attention/layers.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/attention/paths/thresholds.h"
#include "core/torch.h"

namespace headlab {
namespace {

using at::Tensor;

// MKL, the BLAS of torch's wheels, runs AVX2 on AMD's processors even where they have AVX-512,
// which oneDNN uses: measured twice as fast for the products of a small decoder.
bool onednn_is_faster() {
#if defined(__x86_64__)
  static const bool faster = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
  return faster;
#else
  return false;
#endif
}

std::atomic<int> chosen_library{-1};  // as use_onednn() chose; -1: the faster one

bool takes_onednn() {
  const int chosen = chosen_library;
  return at::globalContext().hasMKLDNN() && (chosen < 0 ? onednn_is_faster() : chosen > 0);
}

// For a tensor with gaps, such as some columns of a wider weight, oneDNN has its reference code
// alone, which takes a hundred times as long.
Tensor without_gaps(const Tensor& t) {
  return t.is_non_overlapping_and_dense() ? t : t.contiguous();
}

// a b^T + bias by oneDNN: a [M,K], b [N,K] of any strides -> [M,N].
Tensor onednn_product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias = {}) {
  using Scalars = torch::List<std::optional<at::Scalar>>;
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
          .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                        std::string_view, Scalars, std::optional<std::string_view>)>();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(without_gaps(a), without_gaps(b), bias, "none", Scalars(), "");
}

class Product : public torch::autograd::Function<Product> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& weight, const std::optional<Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return onednn_product(x, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];  // [M,K], [N,K]
    const auto g = gradients[0].contiguous();      // [M,N]
    Tensor for_x, for_weight, for_bias;
    // oneDNN's product has no derivative: gradients that are to be derived again are torch's. The
    // first factor is copied into rows: better the smaller one.
    const bool again = at::GradMode::is_enabled(), fewer = g.size(1) <= x.size(1);
    if (ctx->needs_input_grad(0))
      for_x = again ? g.mm(weight) : onednn_product(g, weight.t());  // [M,K]
    if (ctx->needs_input_grad(1))
      for_weight = again   ? g.t().mm(x)
                   : fewer ? onednn_product(g.t(), x.t())
                           : onednn_product(x.t(), g.t()).t();  // [N,K]
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) for_bias = g.sum(0);
    return {for_x, for_weight, for_bias};
  }
};

// Of x [.., in] and weight [out, in].
bool onednn_serves(const Tensor& x, const Tensor& weight) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
         weight.numel() > 0 && x.numel() >= threshold::kFewestOnednnRows * weight.size(1) &&
         !at::autocast::is_autocast_enabled(at::kCPU) && takes_onednn();
}

}  // namespace

void use_onednn(std::optional<bool> choice) { chosen_library = choice ? *choice : -1; }

Tensor product(const Tensor& a, const Tensor& b) {
  return onednn_serves(a, b) ? onednn_product(a, b) : a.mm(b.t());
}

Tensor project(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!onednn_serves(x, weight)) return at::linear(x, weight, bias);
  const int64_t in = weight.size(1);
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return Product::apply(x.reshape({-1, in}), weight, given).view(sizes);
}

LinearImpl::LinearImpl(int64_t in, int64_t out, bool with_bias) {
  weight = register_parameter("weight", at::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", at::empty({out}));
  at::NoGradGuard no_grad;
  // Kaiming's uniform distribution with a = sqrt 5, computed in torch's order of operations.
  const double a = std::sqrt(5.0), fan_in = static_cast<double>(std::max<int64_t>(in, 1));
  const double deviation = std::sqrt(2.0 / (1 + std::pow(a, 2))) / std::sqrt(fan_in);
  const double bound = std::sqrt(3.0) * deviation;
  weight.uniform_(-bound, bound);
  if (with_bias) bias.uniform_(-1 / std::sqrt(fan_in), 1 / std::sqrt(fan_in));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  // Under autocast x may be of a half type: summed in the weight's, as layer norms are there.
  const auto wide = x.to(at::promote_types(x.scalar_type(), weight.scalar_type()));
  return at::rms_norm(wide, weight.sizes(), weight, eps);
}

RmsNormImpl::RmsNormImpl(at::IntArrayRef sizes, double eps, bool with_bias) : eps_(eps) {
  weight = register_parameter("weight", at::ones(sizes));
  if (with_bias) bias = register_parameter("bias", at::zeros(sizes));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  const int64_t d = x.size(-1);
  const auto for_all = [&](const at::Tensor& t) { return t.dim() == 1 && t.size(0) == d; };
  const auto by_head = [&](const at::Tensor& t) {  // [d], or [H,d] or [H*d] -> [H,1,d]
    return for_all(t) ? t : t.view({-1, 1, d});
  };
  const auto normed = for_all(weight) ? rms_norm(x, weight, eps_)
                                      : at::rms_norm(x, {d}, {}, eps_) * by_head(weight);
  return bias.defined() ? normed + by_head(bias) : normed;
}

}  // namespace headlab
