// The statistics of a row as the kernels number them (row_statistics.inc). No torch.
#pragma once

namespace headlab {

// What a row is counted in: means, whose value is sum / count over the counted rows, and maxima
// over these rows.
enum RowStatistic : int {
#define HEADLAB_ROW_MEAN(enumerator, ...) enumerator,
#define HEADLAB_ROW_MAXIMUM(enumerator, ...)
#include "core/kernels/row_statistics.inc"
  kRowStatistics  // how many there are
};
enum RowMaximum : int {
#define HEADLAB_ROW_MEAN(enumerator, ...)
#define HEADLAB_ROW_MAXIMUM(enumerator, ...) enumerator,
#include "core/kernels/row_statistics.inc"
  kRowMaxima
};

}  // namespace headlab
