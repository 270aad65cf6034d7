// Picks the instruction set of attention through composed maps once, at the first use.
#include "core/kernels/compose_rows.h"

#include "core/kernels/isa.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                                                           \
  namespace isa {                                                                      \
  void compose_forward_f32(const ComposeProblem<float>&, int64_t, int64_t, float*);    \
  void compose_forward_f64(const ComposeProblem<double>&, int64_t, int64_t, double*);  \
  void compose_backward_f32(const ComposeProblem<float>&, int64_t, int64_t, float*);   \
  void compose_backward_f64(const ComposeProblem<double>&, int64_t, int64_t, double*); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

template <>
ComposeSlot<float> compose_forward<float>() {
  static const ComposeSlot<float> best = HEADLAB_BEST(compose_forward_f32);
  return best;
}
template <>
ComposeSlot<double> compose_forward<double>() {
  static const ComposeSlot<double> best = HEADLAB_BEST(compose_forward_f64);
  return best;
}
template <>
ComposeSlot<float> compose_backward<float>() {
  static const ComposeSlot<float> best = HEADLAB_BEST(compose_backward_f32);
  return best;
}
template <>
ComposeSlot<double> compose_backward<double>() {
  static const ComposeSlot<double> best = HEADLAB_BEST(compose_backward_f64);
  return best;
}

}  // namespace headlab
