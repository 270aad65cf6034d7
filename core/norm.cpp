#include "core/norm.h"

#include <torch/torch.h>

namespace headlab {

RmsNormImpl::RmsNormImpl(int64_t width, double eps) : eps_(eps) {
  weight = register_parameter("weight", at::ones({width}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return at::rms_norm(x, weight.sizes(), weight, eps_);
}

}  // namespace headlab
