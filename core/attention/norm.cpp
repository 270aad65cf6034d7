#include "core/attention/norm.h"

#include "core/torch.h"

namespace headlab {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

RmsNormImpl::RmsNormImpl(int64_t width, double eps) : eps_(eps) {
  weight = register_parameter("weight", at::ones({width}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) { return rms_norm(x, weight, eps_); }

}  // namespace headlab
