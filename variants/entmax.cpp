// Entmax attention: alpha-entmax instead of the softmax, so that keys can get no weight at all.
//
// Peters et al., "Sparse Sequence-to-Sequence Models", arXiv 1905.05702, equation (10); an alpha
// for each head that is learned: Correia et al., "Adaptively Sparse Transformers", arXiv
// 1909.00015, equation (9), here with a floor, since near 1 its gradient is ill-conditioned:
//   A = alpha-entmax(z), alpha_h = max(1 + sigmoid(alpha_h), 1.01)
#include "core/weight_maps.h"

namespace headlab {
namespace {

using Entmax = MapHeads<FixedMapOptions<EntmaxMap>>;

const RegisterHeads<Entmax> registered("entmax",
                                       "sparse attention by alpha-entmax, alpha given or learned");

}  // namespace
}  // namespace headlab
