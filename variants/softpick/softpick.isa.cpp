#include "core/kernels/row_vectors.h"
#include "variants/softpick/softpick_rows.h"

namespace headlab::CPU_CAPABILITY {

RowMap softpick_rows() { return row_map<SoftpickRow>(); }

}  // namespace headlab::CPU_CAPABILITY
