#include "core/kernels/compose_cuda.cuh"
#include "variants/sigmoid/sigmoid_rows.h"

namespace headlab {

const RowMapOnCuda* sigmoid_on_cuda() { return row_map_on_cuda<SigmoidRow>(); }

}  // namespace headlab
