// Entmax attention: alpha-entmax instead of the softmax, so that keys can get no weight at all.
//
// Peters et al., "Sparse Sequence-to-Sequence Models", arXiv 1905.05702, equation (10); an alpha
// for each head that is learned: Correia et al., "Adaptively Sparse Transformers", arXiv
// 1909.00015, equation (9), here with a floor, since near 1 its gradient is ill-conditioned:
//   A = alpha-entmax(z), alpha_h = max(1 + sigmoid(alpha_h), 1.01)
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct EntmaxMap : WeightMapOptions {
  double alpha = 1.5;
  bool learn_alpha = false;

  void visit(Fields& f) override {
    f("alpha", alpha, "of all heads: 1 is the softmax, 2 sparsemax; larger is sparser",
      at_least(1));
    f("learn_alpha", learn_alpha,
      "each head learns its alpha, between 1.01 and 2; then `alpha` is not used");
  }
  WeightMap map() const override { return {.kind = WeightMap::Kind::kEntmax, .alpha = alpha}; }
  std::optional<Learned> learned(int64_t heads) const override {
    if (!learn_alpha) return {};
    return Learned{"alpha", at::randn({heads})};
  }
};

using Entmax = MapHeads<FixedMapOptions<EntmaxMap>>;

const RegisterMap<EntmaxMap> map("entmax");
const RegisterHeads<Entmax> registered("entmax",
                                       "sparse attention by alpha-entmax, alpha given or learned");

}  // namespace
}  // namespace headlab
