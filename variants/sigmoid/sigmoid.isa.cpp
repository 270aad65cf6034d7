#include "core/kernels/row_vectors.h"
#include "variants/sigmoid/sigmoid_rows.h"

namespace headlab::CPU_CAPABILITY {

RowMap sigmoid_rows() { return row_map<SigmoidRow>(); }

}  // namespace headlab::CPU_CAPABILITY
