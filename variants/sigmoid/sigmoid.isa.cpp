#include "variants/sigmoid/sigmoid_rows.h"

#include "core/kernels/row_vectors.h"

namespace headlab::CPU_CAPABILITY {

RowMap sigmoid_rows() { return row_map<SigmoidRow>(); }

}  // namespace headlab::CPU_CAPABILITY
