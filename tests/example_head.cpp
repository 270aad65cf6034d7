// Heads with a learned temperature each: softmax(q k^T / (tau_h sqrt d)) v.
#include <cmath>

#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct TemperatureOptions : MhaOptions {
  double start = 1;
  void visit(Fields& f) override {
    MhaOptions::visit(f);  // bias, scale, qk_norm and the like
    f("start", start, "tau before training", above(0));
  }
};

class Temperature : public ProjectedHeads<TemperatureOptions> {
 public:
  Temperature(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    log_tau_ = parameter("log_tau", at::full({shape.heads}, std::log(options.start)),
                         heads_along({0}));  // [H]
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call) / log_tau_.exp().view({1, -1, 1, 1});  // [B,H,T,d]
    return {.y = output(attend(q, keys(x, call), values(x, call), call, scale()), call)};
  }
  Tensor log_tau_;
};

const RegisterHeads<Temperature> registered("temperature", "each head learns how sharp it is");

}  // namespace
}  // namespace headlab
