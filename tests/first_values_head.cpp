// Heads with a value residual (ResFormer, arXiv 2410.17897): what they attend to is
//   v <- lambda_0 v_1 + lambda_1 v
// where v_1 are the values of the first layer, which it says to the later ones. A layer outside of
// a model has its own values for v_1.
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct FirstValuesOptions : MhaOptions {
  LinkParts reads() const override { return {.first_values = true}; }
  HeadTraits traits() const override { return plain(MhaOptions::traits()); }
};

class FirstValues : public ProjectedHeads<FirstValuesOptions> {
 public:
  FirstValues(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    if (!shape.offers.first_values)
      lambda_ = parameter("lambda", at::full({2}, 0.5), shared_by_heads());
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    auto own = call;
    if (lambda_.defined()) {
      const auto alone = [&] {                       // also of no heads
        const auto v = v_(rest_of_source(x, call));  // [B,S,Hkv*e]
        return split_heads(v, shape_.kv_heads, value_width());
      };
      const auto first = call.link ? own_kv_heads(linked(call, &LayerLink::first_values)) : alone();
      own.shaping.v = Affine{lambda_[1], lambda_[0] * first}.before(call.shaping.v);
    }
    const auto q = queries(x, own);                   // [B,H,T,d]
    const auto k = keys(x, own), v = values(x, own);  // [B,Hkv,S,d]
    return {.y = output(attend(q, k, v, own, scale()), v, own)};
  }

  Tensor lambda_;  // [2]; undefined in the first layer
};

const RegisterHeads<FirstValues> first("first_values", "values with those of the first layer");

}  // namespace
}  // namespace headlab
