#include "core/kernels/row_vectors.h"
#include "variants/entmax/entmax_rows.h"

namespace headlab::CPU_CAPABILITY {

RowMap entmax_rows() { return row_map<EntmaxRow>(); }

}  // namespace headlab::CPU_CAPABILITY
