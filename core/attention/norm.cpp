#include "core/attention/norm.h"

#include "core/torch.h"

namespace headlab {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

RmsNormImpl::RmsNormImpl(at::IntArrayRef sizes, double eps) : eps_(eps) {
  weight = register_parameter("weight", at::ones(sizes));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  if (weight.dim() == 1) return rms_norm(x, weight, eps_);
  return at::rms_norm(x, {x.size(-1)}, {}, eps_) * weight.unsqueeze(1);  // [H,1,d]
}

}  // namespace headlab
