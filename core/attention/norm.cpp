#include "core/attention/norm.h"

#include "core/torch.h"

namespace headlab {

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
