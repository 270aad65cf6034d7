// Attention and MLP, each with its norm and residual; with a memory, cross-attention between them.
#pragma once

#include "experiments/models/stack_options.h"

namespace headlab {

// LN(x) = (x - mean) / sqrt(var + eps) * weight + bias, or RMS(x) without mean and bias.
class NormImpl : public torch::nn::Module {
 public:
  explicit NormImpl(const StackOptions& options);
  Tensor forward(const Tensor& x);

 private:
  bool rms_;
  double eps_;
  Tensor weight_, bias_;
};
TORCH_MODULE(Norm);

// Of the activations that `mlp` names, the plain ones.
Tensor activate(const std::string& name, const Tensor& x);

// down(drop(act(up x))), or down(drop(silu(gate x) * up x)) for swiglu.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const StackOptions& options);
  Tensor forward(const Tensor& x, const CounterRng& rng);  // of the dropout
  double flops_per_token() const;

 private:
  std::string activation_;
  double dropout_;
  Linear up_{nullptr}, gate_{nullptr}, down_{nullptr};
};
TORCH_MODULE(Mlp);

// Pre-norm x + f(norm x), post-norm norm(x + f x), for each f of attention, cross-attention (where
// the stack has it) and MLP.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  TransformerBlockImpl(const StackOptions& options, int64_t layer, int64_t context);
  // x [B,T,D] -> [B,T,D]. `cross`: the call of the cross-attention, memory and all; not read where
  // there is none. Losses of the heads are appended to `aux`.
  Tensor forward(const Tensor& x, const HeadContext& self, const HeadContext& cross,
                 std::vector<AuxLoss>& aux);

  std::shared_ptr<AttentionHeads>& attention() { return attention_; }  // registered as "attention"
  std::shared_ptr<AttentionHeads>& cross() { return cross_; }          // as "cross"; null: none
  const MlpImpl& mlp() const { return *mlp_; }

 private:
  CounterRng draws_;  // site and layer of them
  bool pre_norm_;
  double dropout_;
  Norm norm1_{nullptr}, norm2_{nullptr}, norm3_{nullptr};
  std::shared_ptr<AttentionHeads> attention_, cross_;
  Mlp mlp_{nullptr};
};
TORCH_MODULE(TransformerBlock);

}  // namespace headlab
