// Rows of alpha-entmax for one instruction set.
#include "core/kernels/entmax_rows.h"

#include "core/kernels/entmax_lanes.h"

namespace headlab::CPU_CAPABILITY {

// Named symbols for the dispatcher in entmax_rows.cpp.
void entmax_f32(const float* z, int64_t S, float alpha, float* p, float* scratch) {
  entmax(z, S, alpha, p, scratch);
}
void entmax_f64(const double* z, int64_t S, double alpha, double* p, double* scratch) {
  entmax(z, S, alpha, p, scratch);
}

}  // namespace headlab::CPU_CAPABILITY
