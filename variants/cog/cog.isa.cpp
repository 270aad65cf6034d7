#include "core/kernels/row_vectors.h"
#include "variants/cog/cog_rows.h"

namespace headlab::CPU_CAPABILITY {

RowMap cog_rows() { return row_map<CogRow>(); }

}  // namespace headlab::CPU_CAPABILITY
