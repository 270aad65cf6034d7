// y = x W^T + b by the faster of the CPU's two libraries.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace headlab {

// x [..., in], weight [out, in], bias [out] or undefined -> [..., out]. at::linear, but for float32
// on processors where oneDNN multiplies faster than the BLAS behind it.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
// a b^T likewise, through which no gradient passes: a [M,K], b [N,K] of any strides -> [M,N].
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// Whether oneDNN takes what it can take; none: only where it is faster. For tests of both libraries
// on one processor.
void use_onednn(std::optional<bool> choice);

// Parameters `weight` [out, in] and `bias` [out], drawn as torch::nn::Linear draws them: its
// headers cost every file two seconds of templates.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, bool with_bias = true);
  at::Tensor forward(const at::Tensor& x) { return project(x, weight, bias); }

  at::Tensor weight, bias;  // bias: undefined without one
};
TORCH_MODULE(Linear);

}  // namespace headlab
