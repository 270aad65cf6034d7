// Hard-concrete gates of heads (Louizos et al., arXiv 1712.01312): pure functions; and the number
// of them that is to stay open.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace headlab {

using at::Tensor;

// g = clip(s (zeta - gamma) + gamma, 0, 1),  s = sigmoid of a logit around log_alpha.
struct HardConcrete {
  double temperature = 0.33, gamma = -0.1, zeta = 1.1, eps = 1e-6;
};
// P(g != 0) in training, within eps of 0 and 1.
Tensor p_open(const Tensor& log_alpha, const HardConcrete& gate);

// What one layer tells of the gates that training opens and shuts: those of its heads that are
// alive, in float32 or wider, all [n]. A layer without such gates leaves the tensors undefined.
struct GateTarget;
struct LearnedGates {
  std::vector<int64_t> heads;  // original indices
  Tensor log_alpha;
  Tensor open;     // p_open, with its gradient
  Tensor clipped;  // the gate without noise; a head whose gate lies between 0 and 1 is undecided
  Tensor test;     // the gate in evaluation
  const GateTarget* target = nullptr;  // null: gates are pushed by a penalty
};

// A number of heads to end with, instead of a penalty. Sparsity is the expected share of shut
// gates; that which is asked rises linearly over the warm-up.
struct GateTarget : Block {
  std::optional<int64_t> heads;
  std::optional<double> sparsity;
  int64_t warmup = 0, begin = 0;
  double start = 0;
  std::string scope = "model";

  void visit(Fields& f) override;
  void check(const Complain& complain) const override;
  bool is_set() const { return heads || sparsity; }
  bool by_layer() const { return scope == "layer"; }
};

}  // namespace headlab
