// A layer around a layer of any other kind: whatever AttentionHeads is asked, the inner layer
// answers. A wrapper overrides compute(), which calls run_inner(), and what else it changes.
#pragma once

#include "core/head_kinds.h"

namespace headlab {

struct WrapperOptions : HeadOptions {
  KindBlock inner;

  // The kind that is wrapped where none is named.
  explicit WrapperOptions(const char* kind) : inner(head_registry(), kind) {}
  // Names `inner`; a wrapper that overrides this does so, too.
  void visit(Fields& f) override;
  // Those of the inner kind, by whose options the wrapper is made.
  HeadTraits traits() const override { return inner.as<HeadOptions>().traits(); }
  LinkParts reads() const override { return inner.as<HeadOptions>().reads(); }
  const GateTarget* gate_target() const override { return inner.as<HeadOptions>().gate_target(); }
  std::optional<InitDifferences> init_differences() const override;
  void check_shape(const HeadShape& shape, const HeadDemands& demands,
                   const Complain& complain) const override;
};

class WrappedHeads : public AttentionHeads {
 public:
  std::optional<HeadMatrices> matrices() const override { return inner_->matrices(); }
  std::vector<Statistic> own_statistics() const override { return inner_->statistics(); }
  std::vector<std::string> aux_names() const override { return inner_->aux_names(); }
  void parameter_groups(ParameterGroups& groups) override { inner_->parameter_groups(groups); }
  LearnedGates learned_gates() const override;
  void after_step() override { inner_->after_step(); }
  int64_t value_width() const override { return inner_->value_width(); }
  Tensor output_weight() const override { return inner_->output_weight(); }
  // With what the wrapper registered.
  double flops(int64_t T, int64_t S, double pairs) const override;

 protected:
  // Makes the inner layer, submodule `inner`.
  WrappedHeads(const HeadShape& shape, const WrapperOptions& options);
  // The inner layer in this layer's call, whose edits it applies.
  HeadOutput run_inner(const Tensor& x, const HeadCall& call);

 private:
  double flops_of_pair() const override { return 0; }
  // Around the slice of the inner layer.
  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override;

  std::shared_ptr<AttentionHeads> inner_;
};

}  // namespace headlab
