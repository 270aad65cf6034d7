// What gives back a whole example from one state of it: the head that MAD's compression task has
// (Poli et al., arXiv 2403.17844).
#pragma once

#include "experiments/models/stack.h"

namespace headlab {

// e [B,D] -> logits [B,T,V] of places t = 0 .. T - 1:
//   x = e + p_t,  p_t = [sin(t w), cos(t w)],  w_i = 10000^(-i / (D/2 - 1)), i < D/2
//   twice x = gelu(W norm(x) + b);  logits = W norm(x) + b
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(const StackOptions& options, int64_t vocabulary);
  Tensor forward(const Tensor& state, int64_t places);
  double flops_per_token() const;

 private:
  std::vector<Norm> norms_;
  std::vector<Linear> linears_;
};
TORCH_MODULE(Bottleneck);

}  // namespace headlab
