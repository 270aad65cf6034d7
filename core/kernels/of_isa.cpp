// Picks the kernels of the instruction set that was chosen.
#include "core/kernels/compose_rows.h"
#include "core/kernels/isa.h"
#include "core/kernels/row_stats.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                    \
  namespace isa {                               \
  OfTypes<ComposeKernels> compose_kernels();    \
  OfTypes<RowStatsKernels> row_stats_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

template <class T>
ComposeKernels<T> compose_kernels() {
  return of_type(HEADLAB_OF_ISA(compose_kernels), T());
}
template ComposeKernels<float> compose_kernels();
template ComposeKernels<double> compose_kernels();

template <class T>
RowStatsKernels<T> row_stats_kernels() {
  return of_type(HEADLAB_OF_ISA(row_stats_kernels), T());
}
template RowStatsKernels<float> row_stats_kernels();
template RowStatsKernels<double> row_stats_kernels();

}  // namespace headlab
