// Root-mean-square norm (Zhang & Sennrich, arXiv 1910.07467): x / sqrt(mean(x^2) + eps) * weight.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace headlab {

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
