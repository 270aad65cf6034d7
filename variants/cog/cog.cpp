// Cog attention: weights keep the sign of their score, so that a head can take away as well as add.
//
// Lv et al., "More Expressive Attention with Negative Weights", arXiv 2411.07176;
// trestad/CogAttn:
//   A = sign(z) softmax(|z| + bias) over the allowed keys,   z = scale q k^T,   sign(0) = 0
#include "core/attention/composed/composition.h"
#include "core/attention/paths/paths.h"
#include "core/kernels/isa.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {

#define HEADLAB_DECLARE(isa) \
  namespace isa {            \
  RowMap cog_rows();         \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

namespace {

// Of scores without biases, which would have to be added behind their size was taken.
class SignedSoftmax : public Map {
 public:
  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall&) const override {
    return z.sign() * masked_softmax(z.abs(), allowed);
  }
  std::optional<RowMap> row_map(const AttentionCall& call, int64_t) const override {
    if (call.bias.defined() || call.distance_bias.defined()) return std::nullopt;
    return HEADLAB_OF_ISA(cog_rows);
  }
};

struct CogOptions : MhaOptions {
  HeadTraits traits() const override { return plain({.rows_sum_to_one = false, .grouped = true}); }
};

class Cog : public ProjectedHeads<CogOptions> {
 public:
  using ProjectedHeads::ProjectedHeads;

  std::vector<Statistic> own_statistics() const override { return composed_statistics(); }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const bool watched = call.observer && call.observer->wants_maps();
    Tensor heads;
    if (call.bias.defined() || call.position_bias) {
      require_maps(call.backend, "signed weights with biases");
      heads = weighted_values(maps(q, k, call).a, v, call);  // [B,H,T,d]
    } else {
      auto own = call.unobserved();
      own.map = map_;
      heads = attend(q, k, v, own, scale());
    }
    if (watched) {
      at::NoGradGuard no_grad;
      auto shown = maps(q, k, call);
      shown.v = v, shown.out = heads;
      observe_weights(shown, call);
    }
    return {.y = output(heads, v, call)};  // [B,T,D]
  }

  // The sizes of the weights, and the weights [B,H,T,S].
  MappedWeights maps(const Tensor& q, const Tensor& k, const HeadCall& call) const {
    const auto z = widened(scaled_products(q, k, call, scale()));
    const auto sizes = add_biases(z.abs(), call);
    const auto p = masked_softmax(sizes, allowed_keys(call.mask, q.size(2), k.size(2), q.device()));
    auto sign = z.sign();
    if (call.uniform.defined()) sign = sign.masked_fill(call.uniform.view({-1, 1, 1}), 1);
    return {.scores = sizes, .p = p, .a = sign * p, .v = {}, .out = {}};
  }

  MapPtr map_ = std::make_shared<SignedSoftmax>();
};

const RegisterHeads<Cog> registered("cog", "softmax of the sizes of scores, with their signs");

}  // namespace
}  // namespace headlab
