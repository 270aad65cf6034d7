// Picks the instruction set of the streamed row statistics once, at the first use.
#include "core/kernels/row_stats.h"

#include "core/kernels/isa.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                                                                    \
  namespace isa {                                                                               \
  void row_stats_f32(const RowProblem<float>&, int64_t, const RowTotals&, int32_t*, float*);    \
  void row_stats_f64(const RowProblem<double>&, int64_t, const RowTotals&, int32_t*, double*);  \
  void js_f32(const RowProblem<float>&, int64_t, int64_t, int64_t, double*, double*, float*);   \
  void js_f64(const RowProblem<double>&, int64_t, int64_t, int64_t, double*, double*, double*); \
  void norm_f32(const RowProblem<float>&, int64_t, float*);                                     \
  void norm_f64(const RowProblem<double>&, int64_t, double*);                                   \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

template <>
RowStatsSlot<float> row_stats_slot<float>() {
  static const RowStatsSlot<float> best = HEADLAB_BEST(row_stats_f32);
  return best;
}
template <>
RowStatsSlot<double> row_stats_slot<double>() {
  static const RowStatsSlot<double> best = HEADLAB_BEST(row_stats_f64);
  return best;
}
template <>
JsSlot<float> js_slot<float>() {
  static const JsSlot<float> best = HEADLAB_BEST(js_f32);
  return best;
}
template <>
JsSlot<double> js_slot<double>() {
  static const JsSlot<double> best = HEADLAB_BEST(js_f64);
  return best;
}
template <>
NormSlot<float> norm_slot<float>() {
  static const NormSlot<float> best = HEADLAB_BEST(norm_f32);
  return best;
}
template <>
NormSlot<double> norm_slot<double>() {
  static const NormSlot<double> best = HEADLAB_BEST(norm_f64);
  return best;
}

}  // namespace headlab
