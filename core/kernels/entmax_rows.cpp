// Picks the instruction set of the entmax rows once, at the first use.
#include "core/kernels/entmax_rows.h"

#include "core/kernels/isa.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                                         \
  namespace isa {                                                    \
  void entmax_f32(const float*, int64_t, float, float*, float*);     \
  void entmax_f64(const double*, int64_t, double, double*, double*); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

template <>
EntmaxRow<float> entmax_row<float>() {
  static const EntmaxRow<float> best = HEADLAB_BEST(entmax_f32);
  return best;
}
template <>
EntmaxRow<double> entmax_row<double>() {
  static const EntmaxRow<double> best = HEADLAB_BEST(entmax_f64);
  return best;
}

}  // namespace headlab
