#include "core/wrapped_heads.h"

#include <fmt/format.h>

#include "core/gate_target.h"
#include "core/torch.h"

namespace headlab {

void WrapperOptions::visit(Fields& f) {
  f("inner", inner,
    "kind of the heads inside, with its options; init_weights of the wrapper is theirs, too");
}

std::optional<InitDifferences> WrapperOptions::init_differences() const {
  auto differences = inner.as<HeadOptions>().init_differences();
  if (!differences) return differences;
  for (auto& one : *differences) {
    std::string parameters = "inner." + one.parameters;
    for (size_t at = 0; (at = parameters.find(", ", at)) != parameters.npos; at += 2)
      parameters.insert(at + 2, "inner.");
    one.parameters = parameters;
  }
  return differences;
}

void WrapperOptions::check_shape(const HeadShape& shape, const HeadDemands& demands,
                                 const Complain& complain) const {
  const auto& options = inner.as<HeadOptions>();
  options.check_shape(shape, demands, [&](const std::string& field, const std::string& what) {
    complain(field.empty() ? "inner" : "inner." + field, what);
  });
  if (init_weights == "host" && !options.init_differences())
    complain("inner", fmt::format("'{}' heads have no host initialisation; choose "
                                  "init_weights: paper",
                                  inner.kind()));
}

WrappedHeads::WrappedHeads(const HeadShape& shape, const WrapperOptions& options)
    : AttentionHeads(shape, options.traits()),
      inner_(shape.wrapped ? shape.wrapped : make_heads(options.inner, shape)) {
  shape_.wrapped = nullptr;
  register_module("inner", inner_);
}

LearnedGates WrappedHeads::learned_gates() const { return inner_->learned_gates(); }

double WrappedHeads::flops(int64_t T, int64_t S, double pairs) const {
  return inner_->flops(T, S, pairs) + AttentionHeads::flops(T, S, pairs);
}

HeadOutput WrappedHeads::run_inner(const Tensor& x, const HeadCall& call) {
  inner_->check_shaping(call.shaping);
  auto own = call;
  own.map = inner_->map();
  return inner_->compute(x, own);
}

std::shared_ptr<AttentionHeads> WrappedHeads::sliced_shell(const SlicePlan& plan) const {
  auto around = plan;
  around.shape.wrapped = inner_->slice_to(plan.alive);
  return AttentionHeads::sliced_shell(around);
}

}  // namespace headlab
