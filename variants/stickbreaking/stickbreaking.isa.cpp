#include "core/kernels/row_vectors.h"
#include "variants/stickbreaking/stick_rows.h"

namespace headlab::CPU_CAPABILITY {

RowMap stick_rows() { return row_map<StickRow>(); }

}  // namespace headlab::CPU_CAPABILITY
