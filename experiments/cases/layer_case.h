// A case: one attention layer with its weights, inputs and expected numbers in one safetensors
// file.
#pragma once

#include <memory>
#include <optional>

#include "core/head_kinds.h"
#include "core/observe/probe.h"
#include "experiments/cases/case_file.h"

namespace headlab {

class LayerCase {
 public:
  // Builds the layer that a file of the format 1 describes. DataError where the file is wrong or
  // its tensors do not fit the layer.
  LayerCase(const std::filesystem::path& path, const at::Device& device);
  // The same of what lies in a file, or a part of one, of any format.
  LayerCase(const CaseFile& file, const at::Device& device);

  struct Wanted {
    bool gradients = true;    // given cot.y
    bool attention = true;    // out.attention, and what queries chose: out.blocks, out.keys
    bool statistics = false;  // stat.<name> [H]
  };
  // Everything that the inputs allow, under the names of the format: out.y, out.attention,
  // out.gates, out.aux_loss, grad.*; in the case's dtype (choices: uint8), on the CPU.
  NamedTensors compute(const Wanted& wanted, Backend backend = Backend::kAuto);
  // One forward pass, with the backward pass where asked and cot.y is there; nothing is recorded.
  void step(bool backward, Backend backend = Backend::kAuto);

  const NamedTensors& expected() const { return expected_; }  // out.* and grad.*
  Tolerance tolerance() const { return tolerance_; }
  const Tensor& x() const { return x_; }  // [B,T,D]
  const Tensor& cotangent() const { return cotangent_; }
  // Of the case's inputs, as long as the case lives; what an earlier layer has said gets gradients
  // where asked.
  HeadContext context(Backend backend, bool gradients = false);
  bool has_cotangent() const { return cotangent_.defined(); }
  const std::string& config() const { return config_; }

  // What was built.
  const AttentionHeads& heads() const { return *heads_; }
  AttentionHeads& heads() { return *heads_; }
  const KindBlock& attention() const { return attention_; }
  const HeadDemands& demands() const { return demands_; }

 private:
  void take_all(const CaseFile& file, const at::Device& device);
  void build(const CaseFile& file);
  void check_inputs(const CaseFile& file) const;
  void take_inputs(NamedTensors& tensors);
  void take_weights(NamedTensors& tensors);
  NamedTensors computed(const Wanted& wanted, Backend backend);
  Tensor total_loss(const HeadOutput& out) const;

  std::string name_, config_;
  Tolerance tolerance_;
  KindBlock attention_{head_registry(), "mha"};
  HeadDemands demands_;
  std::shared_ptr<AttentionHeads> heads_;
  std::optional<Rotary> rotary_;
  Tensor x_, cotangent_;
  HeadContext inputs_;  // the others, but rotary_
  // Of the link: [B,S,Hkv*e], [B,S,Hkv*e], [B,T,D]; undefined: none.
  Tensor first_values_, first_cotangent_, generator_;
  LayerLink link_;
  NamedTensors expected_;
};

}  // namespace headlab
