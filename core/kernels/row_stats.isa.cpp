// The streamed row statistics for one instruction set.
#include "core/kernels/stats_slots.h"
#include "core/kernels/vector_team.h"

namespace headlab::CPU_CAPABILITY {

template <class T>
void stats_rows(const RowProblem<T>& p, int64_t slot, const RowTotals& to, int32_t* offsets,
                T* room) {
  ColumnTotals totals;
  stats_slot(VectorTeam<T>(), p, slot, to, offsets, totals, room);
}

template <class T>
void divergences(const RowProblem<T>& p, int64_t b, int64_t first, int64_t stride, double* sums,
                 double* counts, T* room) {
  double entropy[kMostHeads * kJsRowsPerSlot];
  divergence_slot(VectorTeam<T>(), p, b, first, stride, sums, counts, entropy, room);
}

template <class T>
RowStatsKernels<T> stats_kernels_of() {
  return {stats_rows<T>, divergences<T>,
          [](const RowProblem<T>& p, int64_t b, int64_t head, T* to) {
            VectorTeam<T>::panel(p.k, b, head, 1, padded_keys(p), to);
          },
          [](const RowProblem<T>& p) { return stats_room<VectorTeam<T>>(p); },
          [](const RowProblem<T>& p) { return divergence_room(p); }};
}
OfTypes<RowStatsKernels> row_stats_kernels() {
  return {stats_kernels_of<float>(), stats_kernels_of<double>()};
}

}  // namespace headlab::CPU_CAPABILITY
