// A wrapper: the heads of another kind, each as loud as it learns to be, y = sum_h s_h o_h W_h.
#include "core/torch.h"
#include "core/wrapped_heads.h"

namespace headlab {
namespace {

struct ScaledOptions : WrapperOptions {
  ScaledOptions() : WrapperOptions("latent") {}
};

class Scaled : public WrappedHeads {
 public:
  using Options = ScaledOptions;

  Scaled(const HeadShape& shape, const Options& options) : WrappedHeads(shape, options) {
    strength_ = parameter("strength", at::ones({shape.heads}), heads_along({0}));
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    return run_inner(x, call.with_gates(strength_.view({1, -1, 1})));
  }

  Tensor strength_;  // [H]
};

const RegisterHeads<Scaled> scaled("scaled", "heads of any other kind with a learned strength");

}  // namespace
}  // namespace headlab
