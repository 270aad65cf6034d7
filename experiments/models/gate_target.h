// The loss of a model whose layers aim at a number of open heads (GateTarget): the constraint
// couples them, so that the model forms it.
//
// CoFi (princeton-nlp/CoFiPruning), Sheared LLaMA (princeton-nlp/LLM-Shearing).
#pragma once

#include "core/gate_target.h"
#include "experiments/models/model.h"

namespace headlab {

// What a layer asks, and of how many heads.
struct LayerTarget {
  const GateTarget* target = nullptr;  // null: none
  int64_t heads = 0;
  std::string place = {};  // its block of options
};

// Of all layers of all sites of a model: complains of layers that ask for different things, and of
// more heads than those layers have.
void check_gate_targets(const std::vector<LayerTarget>& layers, const Complain& complain);

// The sparsity that is asked of `count` heads in update `step` (from 0). Fewer heads than are to
// stay: 0.
double sparsity_at(const GateTarget& target, int64_t step, int64_t count);
// (end - start) min(1, step / warmup) + start; step counts from the begin of the warm-up.
double rising_sparsity(double start, double end, int64_t warmup, int64_t step);
// 1 - mean of p_open over all heads: [1], or of each layer: [L]. Layers [H] may differ in H, none
// is empty.
Tensor expected_sparsity(const std::vector<Tensor>& open, bool by_layer);
// mean(lambda1 (s - t) + lambda2 (s - t)^2). Multipliers are scalars, sparsity and target [n].
Tensor lagrangian(const Tensor& sparsity, const Tensor& target, const Tensor& lambda1,
                  const Tensor& lambda2);

// Exactly `count` heads: bool in the shape of log_alpha, true for the largest. Of equals the one in
// the lower layer goes first, then the lower head, as in pruning. NaN never stays: c10::Error when
// `count` exceeds what is left.
Tensor largest_heads(const Tensor& log_alpha, int64_t count);

// lambda1 (s - t) + lambda2 (s - t)^2: the gates descend, the multipliers, which start at 0,
// ascend. Both are saved with the model's weights.
class GateTargetLossImpl : public torch::nn::Module {
 public:
  GateTargetLossImpl();
  // The loss `gate_target` of update `step` over the layers with a target, of their alive heads
  // alone; none when no such head is left.
  std::vector<AuxLoss> forward(const std::vector<std::shared_ptr<AttentionHeads>*>& layers,
                               int64_t step);
  void parameter_groups(ParameterGroups& groups) const;

 private:
  Tensor lambda1_, lambda2_;
};
TORCH_MODULE(GateTargetLoss);

// Name of the module in a model, so of its tensors in a checkpoint.
inline constexpr const char* kGateTarget = "gate_target";

}  // namespace headlab
