// y = x W^T + b by the faster of the CPU's two libraries.
#pragma once

#include <torch/nn/modules/linear.h>

namespace headlab {

// x [..., in], weight [out, in], bias [out] or undefined -> [..., out]. at::linear, but for float32
// on processors where oneDNN multiplies faster than the BLAS behind it.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return project(x, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace headlab
