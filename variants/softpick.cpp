// Softpick attention: rectified, so that keys can get no weight and a row need not sum to one.
//
// Zuhri et al., "Softpick: No Attention Sink, No Massive Activations with Rectified Softmax", arXiv
// 2504.20966, equation (3); zaydzuhri/softpick-attention:
//   A_ij = relu(e^z_ij - 1) / (sum_j |e^z_ij - 1| + eps)
// Keys of negative scores get nothing, but they count in the sum, and so keep a gradient.
#include "core/weight_maps.h"

namespace headlab {
namespace {

using Softpick = MapHeads<FixedMapOptions<SoftpickMap>>;

const RegisterHeads<Softpick> registered("softpick", "rectified softmax, whose rows may be empty");

}  // namespace
}  // namespace headlab
