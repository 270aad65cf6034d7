// What projections and norms are made of: y = x W^T + b by the faster of the CPU's two libraries,
// and root-mean-square norm (Zhang & Sennrich, arXiv 1910.07467), x / sqrt(mean(x^2) + eps) *
// weight.
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

// Over the last dimension, weight [width]; statistics in float32 for half types.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

class RmsNormImpl : public torch::nn::Module {
 public:
  // One weight [d] for all heads, or one a head [H,d] or [H*d]; a bias likewise.
  RmsNormImpl(at::IntArrayRef sizes, double eps, bool with_bias = false);
  at::Tensor forward(const at::Tensor& x);  // [...,d], or [B,H,T,d] -> the same

  at::Tensor weight, bias;  // bias: undefined without one

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace headlab
