#include "core/kernels/compose_cuda.cuh"
#include "variants/softpick/softpick_rows.h"

namespace headlab {

const RowMapOnCuda* softpick_on_cuda() { return row_map_on_cuda<SoftpickRow>(); }

}  // namespace headlab
