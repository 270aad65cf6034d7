// AdamW over the parameters of a model, in groups, by torch's fused kernel.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "core/heads.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

// w *= 1 - lr*decay; m, v as usual; w -= lr * (m / (1 - b1^n)) / (sqrt(v / (1 - b2^n)) + eps)
// (Loshchilov & Hutter, arXiv 1711.05101). Tensors of two or more dimensions decay; gates do not
// and have their own rate; multipliers ascend.
class AdamW {
 public:
  struct Settings {
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8, weight_decay = 0.1;
    double gate_lr = 0.1, multiplier_lr = 0.01;  // these rates stay as they are
    bool gates_only = false;  // all but gates and multipliers stay, and need no gradient any more
  };
  // Takes the parameters as they are registered now: after an exchange of heads, or a move to
  // another device or type, make a new one.
  AdamW(const torch::nn::Module& model, const ParameterGroups& special, const Settings& settings);

  std::vector<Tensor> parameters() const;  // that it trains
  // L2 norm of all gradients, a scalar tensor; those that are not there count as 0.
  Tensor gradient_norm() const;
  // Multiplies the gradients by min(1, limit / (norm + 1e-6)).
  void clip(const Tensor& norm, double limit);
  // One update with the gradients that are there; a parameter without one stays as it is.
  void step(double lr);
  void zero_grad();

  // exp_avg.<parameter>, exp_avg_sq.<parameter>, step.<parameter>: what a checkpoint holds.
  NamedTensors state() const;
  // RunError where a name or shape does not fit.
  void load_state(const NamedTensors& state);

 private:
  enum Group { kDecay, kNoDecay, kGates, kMultipliers, kGroups };
  struct Slot {
    std::string name;
    Tensor parameter, exp_avg, exp_avg_sq, step;
    Group group;
    NamedTensors state() const;  // under their names in a checkpoint
  };
  std::vector<Tensor> gradients() const;
  void step_group(Group group, double lr);

  Settings settings_;
  std::vector<Slot> slots_;
};

}  // namespace headlab
