// Launches the streamed row statistics on a CUDA stream. No torch and no CUDA header.
//
// Every pointer is of the device. Results lie in the slots of row_stats.h, without atomics: the
// same bits in every run. A launch returns at once, with null or what CUDA finds wrong with it.
#pragma once

#include "core/kernels/row_stats.h"

namespace headlab {

// to: of row_slots(p), one after the other, whatever they hold; offsets [row_slots(p),
// kRowsPerSlot].
template <class T>
const char* launch_row_stats(const RowProblem<T>& p, const RowTotals& to, int32_t* offsets,
                             T* scratch, void* stream);

// Query rows start, start + stride, ..., kJsRowsPerSlot a group; sums, counts [B, groups, H, H].
struct JsGroups {
  int64_t groups, start, stride;
  double *sums, *counts;
};

// At most kMostHeads heads.
template <class T>
const char* launch_js(const RowProblem<T>& p, const JsGroups& to, T* scratch, void* stream);

// Elements of scratch these take; none where the scores of a block fit its shared memory.
template <class T>
int64_t row_stats_cuda_scratch(const RowProblem<T>& p);
template <class T>
int64_t js_cuda_scratch(const RowProblem<T>& p, int64_t groups);

}  // namespace headlab
