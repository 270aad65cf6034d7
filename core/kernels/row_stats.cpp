// Picks the instruction set of the streamed row statistics.
#include "core/kernels/row_stats.h"

#include "core/kernels/isa.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                    \
  namespace isa {                               \
  OfTypes<RowStatsKernels> row_stats_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

template <class T>
const RowStatsKernels<T>& row_stats_kernels() {
  return of_type(HEADLAB_OF_ISA(row_stats_kernels), T());
}
template const RowStatsKernels<float>& row_stats_kernels<float>();
template const RowStatsKernels<double>& row_stats_kernels<double>();

}  // namespace headlab
