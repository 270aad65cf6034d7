#include "core/kernels/compose_cuda.cuh"
#include "variants/entmax/entmax_rows.h"

namespace headlab {

const RowMapOnCuda* entmax_on_cuda() { return row_map_on_cuda<EntmaxRow>(); }

}  // namespace headlab
