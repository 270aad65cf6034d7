// Picks the instruction set of attention through composed maps once, at the first use.
#include "core/kernels/compose_rows.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                                                           \
  namespace isa {                                                                      \
  void compose_forward_f32(const ComposeProblem<float>&, int64_t, int64_t, float*);    \
  void compose_forward_f64(const ComposeProblem<double>&, int64_t, int64_t, double*);  \
  void compose_backward_f32(const ComposeProblem<float>&, int64_t, int64_t, float*);   \
  void compose_backward_f64(const ComposeProblem<double>&, int64_t, int64_t, double*); \
  }
HEADLAB_DECLARE(DEFAULT)
#ifdef __x86_64__
HEADLAB_DECLARE(AVX2)
HEADLAB_DECLARE(AVX512)
#define HEADLAB_BEST(function)                                                        \
  (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&         \
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")   \
       ? AVX512::function                                                             \
   : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? AVX2::function \
                                                                     : DEFAULT::function)
#else
#define HEADLAB_BEST(function) DEFAULT::function
#endif

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
