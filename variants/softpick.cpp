// Softpick attention: rectified, so that keys can get no weight and a row need not sum to one.
//
// Zuhri et al., "Softpick: No Attention Sink, No Massive Activations with Rectified Softmax", arXiv
// 2504.20966, equation (3); zaydzuhri/softpick-attention:
//   A_ij = relu(e^z_ij - 1) / (sum_j |e^z_ij - 1| + eps)
// Keys of negative scores get nothing, but they count in the sum, and so keep a gradient.
#include "core/projected_heads.h"

namespace headlab {
namespace {

struct SoftpickMap : WeightMapOptions {
  double eps = 1e-8;

  void visit(Fields& f) override {
    f("eps", eps, "added to the sum that a row is divided by", above(0));
  }
  WeightMap map() const override { return {.kind = WeightMap::Kind::kSoftpick, .eps = eps}; }
};

using Softpick = MapHeads<FixedMapOptions<SoftpickMap>>;

const RegisterMap<SoftpickMap> map("softpick");
const RegisterHeads<Softpick> registered("softpick", "rectified softmax, whose rows may be empty");

}  // namespace
}  // namespace headlab
