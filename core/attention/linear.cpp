#include "core/attention/linear.h"

#include <ATen/autocast_mode.h>

#include "core/torch.h"

namespace headlab {
namespace {

using at::Tensor;

// MKL, the BLAS of torch's wheels, runs AVX2 on AMD's processors even where they have AVX-512,
// which oneDNN uses: measured twice as fast for the products of a small decoder.
bool onednn_is_faster() {
#if defined(__x86_64__)
  static const bool faster = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") &&
                             at::globalContext().hasMKLDNN();
  return faster;
#else
  return false;
#endif
}

// a b^T + bias by oneDNN: a [M,K], b [N,K] of any strides -> [M,N].
Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias = {}) {
  using Scalars = torch::List<std::optional<at::Scalar>>;
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
          .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                        std::string_view, Scalars, std::optional<std::string_view>)>();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(a, b, bias, "none", Scalars(), "");
}

class Product : public torch::autograd::Function<Product> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& weight, const std::optional<Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return product(x, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];  // [M,K], [N,K]
    const auto g = gradients[0].contiguous();      // [M,N]
    Tensor for_x, for_weight, for_bias;
    if (ctx->needs_input_grad(0)) for_x = product(g, weight.t());  // [M,K]
    // The first factor is copied into rows: better the smaller one.
    if (ctx->needs_input_grad(1))
      for_weight = g.size(1) <= x.size(1) ? product(g.t(), x.t()) : product(x.t(), g.t()).t();
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) for_bias = g.sum(0);
    return {for_x, for_weight, for_bias};
  }
};

}  // namespace

Tensor project(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  constexpr int64_t kFewestRows = 16;  // below, it is memory that counts
  const int64_t in = weight.size(1);
  const bool plain = x.is_cpu() && x.scalar_type() == at::kFloat &&
                     weight.scalar_type() == at::kFloat && weight.numel() > 0 &&
                     x.numel() >= kFewestRows * in && !at::autocast::is_autocast_enabled(at::kCPU);
  if (!plain || !onednn_is_faster()) return at::linear(x, weight, bias);
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return Product::apply(x.reshape({-1, in}), weight, given).view(sizes);
}

}  // namespace headlab
